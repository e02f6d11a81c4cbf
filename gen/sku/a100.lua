-- NVIDIA A100 (sm_80). Not measured: what pays on the H200 is taken over, as far as it exists.
local WORLDS = { 2, 3, 4, 5, 6, 7, 8 }
local DTYPES = { "f32", "bf16", "f16" }

local function set(world, algo, threads, unroll, rank)
    return {
        op = { "ar" }, world = world, dtype = DTYPES, hidden = { 0 }, algo = algo,
        transport = { "peer" }, wire = { "nan" }, isa = { "sm80" },
        unroll = unroll, threads = threads, rank = { rank }, launch = { "seq" },
    }
end

return {
    about = "NVIDIA A100 (sm_80)",
    sets = {
        set({ 1 }, { "os" }, { 512 }, { 1 }, "any"),
        set(WORLDS, { "os", "ts" }, { 256, 512 }, { 1 }, "any"),
        set(WORLDS, { "os", "ts" }, { 512 }, { 2, 4 }, "any"),
        set(WORLDS, { "os" }, { 128 }, { 1 }, "own"),
        set(WORLDS, { "os", "ts" }, { 256, 512, 1024 }, { 1 }, "own"),
    },
}
