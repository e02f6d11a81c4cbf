-- The pack for CPUs: tensor parallelism between the processes of one host, through shared memory.

local worlds = { 1, 2, 3, 4, 5, 6, 7, 8 }
local dtypes = { "f32", "bf16", "f16" }

-- Rows of common models: Qwen3 1.7B and Llama 3.2 1B, gpt-oss, Llama 3.2 3B, Qwen2.5 7B, Llama 3.1
-- 8B, Qwen3 32B, Qwen3 Coder 480B, DeepSeek V3, Llama 3.1 70B.
local rows = { 2048, 2880, 3072, 3584, 4096, 5120, 6144, 7168, 8192 }

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
        { -- rows known at compile time: one tactic, for decode steps
            op = { "ar" }, world = { 2, 4, 8 }, dtype = dtypes, hidden = rows, algo = { "os" },
            transport = { "cpu" }, wire = { "flag" }, isa = { "avx2", "avx512" }, unroll = { 4 },
            copy = { "ca" },
        },
    },
}
