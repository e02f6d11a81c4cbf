-- The cpu pack for sanitizers and tests: every world and dtype, few kernels.
return {
    about = "x86-64 CPUs, few kernels, for tests and sanitizers",
    sets = {
        {
            op = { "ar" }, world = { 1, 2, 3, 4, 5, 6, 7, 8 }, dtype = { "f32" },
            hidden = { 0 }, algo = { "os" }, transport = { "cpu" }, wire = { "flag" },
            isa = { "scalar" }, unroll = { 1 }, copy = { "ca" },
        },
    },
}
