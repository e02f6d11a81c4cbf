-- The pack for CPUs: tensor parallelism between the processes of one host, through shared memory.
--
-- Generic in hidden: kernels for h4096 took 0.1 to 1 % longer than generic ones (bf16, 2 ranks,
-- one-shot, 8 to 128 KiB, A against A up to 2.6 %; Xeon, Sapphire Rapids). A SKU that wants rows
-- says hidden = { 0, 4096, ... }; cpu_small, for tests, has some.

local worlds = { 1, 2, 3, 4, 5, 6, 7, 8 }
local dtypes = { "f32", "bf16", "f16" }

return {
    about = "x86-64 CPUs: scalar, AVX2 with F16C, AVX-512F",
    sets = {
        { -- the net: runs everywhere
            op = { "ar" }, world = worlds, dtype = dtypes, hidden = { 0 }, algo = { "os", "ts" },
            transport = { "cpu" }, wire = { "flag" }, isa = { "scalar" }, unroll = { 1 },
            copy = { "ca" },
        },
        { -- what serves most calls
            op = { "ar" }, world = worlds, dtype = dtypes, hidden = { 0 }, algo = { "os", "ts" },
            transport = { "cpu" }, wire = { "flag" }, isa = { "avx2", "avx512" }, unroll = { 1, 4 },
            copy = { "ca", "nt" },
        },
    },
}
