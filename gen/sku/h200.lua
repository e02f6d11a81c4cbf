-- NVIDIA H100 and H200 (sm_90). What is here was measured to pay on two H200s: gen/sets.lua.
local list = gpu { isa = "sm90" }

-- Through host memory smaller blocks are the fastest at most sizes up to 1 MiB, by 1 to 3 %.
local function host(threads, rank)
    list[#list + 1] = {
        op = { "ar" }, world = { 2, 3, 4, 5, 6, 7, 8 }, dtype = { "f32", "bf16", "f16" }, hidden = { 0 },
        algo = { "os" }, transport = { "host" }, wire = { "tag" }, isa = { "sm90" },
        unroll = { 1 }, threads = threads, rank = rank, launch = { "seq", "dep" },
    }
end
host({ 64 }, { "any" })
host({ 128 }, { "own" })

return { about = "NVIDIA H100 and H200", sets = list }
