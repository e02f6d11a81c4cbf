-- NVIDIA L40S, L4 and RTX 40 (sm_89), on PCIe. Not measured.
local WORLDS = { 2, 3, 4, 5, 6, 7, 8 }
local DTYPES = { "f32", "bf16", "f16" }

local function set(world, algo, threads, unroll, rank)
    return {
        op = { "ar" }, world = world, dtype = DTYPES, hidden = { 0 }, algo = algo,
        transport = { "peer" }, wire = { "nan" }, isa = { "sm89" },
        unroll = unroll, threads = threads, rank = { rank }, launch = { "seq" },
    }
end

return {
    about = "NVIDIA L40S, L4 and RTX 40 (sm_89)",
    sets = {
        set({ 1 }, { "os" }, { 512 }, { 1 }, "any"),
        set(WORLDS, { "os", "ts" }, { 256, 512 }, { 1, 2, 4 }, "any"),
        set(WORLDS, { "os", "ts" }, { 256, 1024 }, { 1 }, "own"),
    },
}
