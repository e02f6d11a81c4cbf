-- One shard of every kind of CUDA kernel, for tests: compiles in seconds.
return {
    about = "NVIDIA H100 and H200 class, a handful of kernels for tests",
    sets = {
        {
            op = { "ar" }, world = { 2, 4 }, dtype = { "bf16" }, hidden = { 0 },
            algo = { "os", "ts" }, transport = { "peer" }, wire = { "nan" }, isa = { "sm90" },
            unroll = { 1 }, threads = { 256 }, rank = { "any", "own" }, launch = { "seq" },
        },
        {
            op = { "ar" }, world = { 4 }, dtype = { "bf16" }, hidden = { 0 },
            algo = { "il" }, transport = { "peer" }, wire = { "nan" }, isa = { "sm90" },
            unroll = { 1 }, threads = { 256 }, rank = { "any" }, launch = { "seq", "dep" },
        },
        {
            op = { "ar" }, world = { 2 }, dtype = { "bf16" }, hidden = { 0 },
            algo = { "os" }, transport = { "peer" }, wire = { "nan" }, isa = { "sm90" },
            unroll = { 2 }, threads = { 512 }, rank = { "own" }, launch = { "dep" },
        },
        {
            op = { "ar" }, world = { 4 }, dtype = { "bf16" }, hidden = { 0 },
            algo = { "pt" }, transport = { "peer" }, wire = { "nan" }, isa = { "sm90" },
            unroll = { 1, 4 }, threads = { 256 }, rank = { "any" }, launch = { "seq" },
        },
        {
            op = { "ar" }, world = { 2, 4 }, dtype = { "bf16" }, hidden = { 0 },
            algo = { "os", "ts" }, transport = { "peer" }, wire = { "flag" }, isa = { "sm90" },
            unroll = { 1 }, threads = { 320 }, rank = { "any" }, launch = { "seq" },
        },
        {
            op = { "ar" }, world = { 2, 4 }, dtype = { "bf16" }, hidden = { 0 },
            algo = { "os", "ts" }, transport = { "host" }, wire = { "tag" }, isa = { "sm90" },
            unroll = { 1 }, threads = { 256 }, rank = { "any", "own" }, launch = { "seq" },
        },
        {
            op = { "ar" }, world = { 2, 4 }, dtype = { "bf16" }, hidden = { 0 },
            algo = { "os", "ts" }, transport = { "host" }, wire = { "flag" }, isa = { "sm90" },
            unroll = { 2 }, threads = { 320 }, rank = { "any" }, launch = { "seq" },
        },
    },
}
