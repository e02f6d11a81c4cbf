-- The cpu pack for tests and sanitizers: every world and dtype, every algorithm and instruction set,
-- few kernels of each.

local function set(worlds, isa, unroll, copy)
    return {
        op = { "ar" }, world = worlds, dtype = { "f32", "bf16", "f16" }, hidden = { 0 },
        algo = { "os", "ts" }, transport = { "cpu" }, wire = { "flag" }, isa = { isa },
        unroll = { unroll }, copy = { copy },
    }
end

return {
    about = "x86-64 CPUs, few kernels, for tests and sanitizers",
    sets = {
        set({ 1, 2, 3, 4, 5, 6, 7, 8 }, "scalar", 1, "ca"),
        set({ 1, 2, 3 }, "avx2", 4, "nt"),
        set({ 1, 2, 3 }, "avx512", 1, "ca"),
        { -- rows known at compile time
            op = { "ar" }, world = { 2 }, dtype = { "f32", "bf16" }, hidden = { 4096 }, algo = { "os" },
            transport = { "cpu" }, wire = { "flag" }, isa = { "avx2" }, unroll = { 4 }, copy = { "ca" },
        },
    },
}
