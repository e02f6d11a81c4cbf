-- NVIDIA B200 and GB200 (sm_100). Not measured: what pays on the H200 is taken over.
local WORLDS = { 2, 3, 4, 5, 6, 7, 8 }
local DTYPES = { "f32", "bf16", "f16" }

local function set(world, algo, threads, unroll, rank, launch)
    return {
        op = { "ar" }, world = world, dtype = DTYPES, hidden = { 0 }, algo = algo,
        transport = { "peer" }, wire = { "nan" }, isa = { "sm100" },
        unroll = unroll, threads = threads, rank = { rank }, launch = launch,
    }
end

return {
    about = "NVIDIA B200 and GB200 (sm_100)",
    sets = {
        set({ 1 }, { "os" }, { 512 }, { 1 }, "any", { "seq" }),
        set(WORLDS, { "os", "ts" }, { 256, 512 }, { 1 }, "any", { "seq" }),
        set(WORLDS, { "os", "ts" }, { 512 }, { 2, 4 }, "any", { "seq" }),
        set(WORLDS, { "os" }, { 128 }, { 1 }, "own", { "seq", "dep" }),
        set(WORLDS, { "os", "ts" }, { 256, 512, 1024 }, { 1 }, "own", { "seq", "dep" }),
    },
}
