-- NVIDIA H100 and H200 (sm_90). What is here was measured to pay on two H200s: kernels that know
-- their rank beat the others up to 1 MiB by 0.1 to 0.2 us (5 to 8 %), dependent launch saves another
-- 0.3 to 0.4 us where the caller allows it, and more packs in flight per thread gain nothing where
-- the grid can grow instead, so that two sizes of it are left for the largest tensors.
local WORLDS = { 2, 3, 4, 5, 6, 7, 8 }
local DTYPES = { "f32", "bf16", "f16" }

local function set(world, algo, threads, unroll, rank, launch)
    return {
        op = { "ar" }, world = world, dtype = DTYPES, hidden = { 0 }, algo = algo,
        transport = { "peer" }, wire = { "nan" }, isa = { "sm90" },
        unroll = unroll, threads = threads, rank = { rank }, launch = launch,
    }
end

return {
    about = "NVIDIA H100 and H200",
    sets = {
        set({ 1 }, { "os" }, { 512 }, { 1 }, "any", { "seq" }),
        set(WORLDS, { "os", "ts" }, { 256, 512 }, { 1 }, "any", { "seq" }),
        set(WORLDS, { "os", "ts" }, { 512 }, { 2, 4 }, "any", { "seq" }),
        set(WORLDS, { "os" }, { 128 }, { 1 }, "own", { "seq", "dep" }),
        set(WORLDS, { "os", "ts" }, { 256, 512, 1024 }, { 1 }, "own", { "seq", "dep" }),
    },
}
