-- NVIDIA RTX PRO 6000 Blackwell, RTX 5090 and others of sm_120, on PCIe. Not measured: stores to the
-- peer are slow there, so that more packs in flight are left to choose from than on NVLink.
local WORLDS = { 2, 3, 4, 5, 6, 7, 8 }
local DTYPES = { "f32", "bf16", "f16" }

local function set(world, algo, threads, unroll, rank, launch)
    return {
        op = { "ar" }, world = world, dtype = DTYPES, hidden = { 0 }, algo = algo,
        transport = { "peer" }, wire = { "nan" }, isa = { "sm120" },
        unroll = unroll, threads = threads, rank = { rank }, launch = launch,
    }
end

return {
    about = "NVIDIA RTX PRO 6000 Blackwell (sm_120)",
    sets = {
        set({ 1 }, { "os" }, { 512 }, { 1 }, "any", { "seq" }),
        set(WORLDS, { "os", "ts" }, { 256, 512 }, { 1 }, "any", { "seq" }),
        set(WORLDS, { "os", "ts" }, { 256, 512 }, { 2, 4 }, "any", { "seq" }),
        set(WORLDS, { "os" }, { 128 }, { 1 }, "own", { "seq", "dep" }),
        set(WORLDS, { "os", "ts" }, { 256, 512, 1024 }, { 1 }, "own", { "seq", "dep" }),
    },
}
