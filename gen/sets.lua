-- Sets that several SKUs share. SKU files call these functions by name, and add what is theirs.

local format = string.format -- SKU files run without string methods

local sets = {}

local WORLDS = { 2, 3, 4, 5, 6, 7, 8 }
local KNOWN = { isa = "string", pcie = "boolean", known_ranks = "boolean" }

-- What is worth a choice on NVIDIA GPUs, between peers and through host memory. `options`:
--     isa          of the code
--     pcie         peers are reached through PCIe: more packs in flight to choose from, islands, and
--                  what keeps a switch from being stored to from all sides
--     known_ranks  false: no kernels that know their rank
-- How many times as fast two H200s were with the first of two kinds, each at its best (bf16, graphs; sizes
-- without a figure: one of them was dropped early, or ran with another block size only):
--                             2 Ki   8 Ki  64 Ki  256 Ki   1 Mi   4 Mi  16 Mi
--     peers (NVLink)
--       knows its rank        1.03   1.08   1.06    1.05
--       dependent launch      1.49   1.32   1.27    1.21   1.07   1.03   1.01
--       one-shot              2.26   2.15   2.02    1.70          1.04         over two-shot
--       2 or 4 packs a turn   0.62   0.63   0.67    0.63                      over 1, if it does not
--       code for 2 packs      0.99   1.03   1.04    1.02   1.00               over 1, if it does
--     host memory (PCIe)
--       knows its rank               1.01   0.99
--       dependent launch      1.05   1.03   1.07    1.06   1.01
--       2 packs a turn                                     0.95   1.01        over 1
-- Pull (flag between peers) took 2.0, 1.6 and 3.8 times as long as stores at 2 Ki, 256 Ki and 4 Mi.
--
-- Copy engines are no tactic. In a program of its own (chunks of 256 Ki to 8 Mi, windows of 4 and 8, the best
-- of all) copies and a kernel that adds took, of the ring's time through host memory, 1.7 at 1 Mi, 1.3 at 4 Mi,
-- 1.15 at 16 Mi and 0.96 at 64 Mi: both ways at once the host gives a GPU 40 GB/s, whoever asks, and each chunk
-- costs nodes of a graph. Between peers 2.9 at 4 Mi, 1.5 at 16 Mi and 1.25 at 64 Mi. Stream memory operations in
-- place of waiting kernels took twice as long again.
--
-- So kernels that know their rank have one pack in flight, at all sizes: more gain nothing where the grid
-- can grow instead, and two sizes of it are left for the largest tensors and for PCIe. Code for two packs is
-- faster all the same, from 16 Ki to 256 Ki, with blocks for one pack a thread (not understood: neither
-- pauses before the first look nor between looks have that effect).
function sets.gpu(options)
    if type(options) ~= "table" then
        error(format("gpu: found a %s, expected a table of isa, pcie and known_ranks", type(options)), 2)
    end
    for key, value in pairs(options) do
        if type(value) ~= KNOWN[key] then
            error(format("gpu: %s is a %s, expected isa, pcie or known_ranks of their types",
                tostring(key), type(value)), 2)
        end
    end
    local list = {}
    local function add(transport, wire, world, algo, threads, unroll, rank, launch)
        if rank == "any" or options.known_ranks ~= false then
            list[#list + 1] = {
                op = { "ar" }, world = world, dtype = { "f32", "bf16", "f16" }, hidden = { 0 },
                algo = algo, transport = { transport }, wire = { wire }, isa = { options.isa },
                unroll = unroll, threads = threads, rank = { rank }, launch = launch,
            }
        end
    end
    local function peer(...)
        add("peer", "nan", ...)
    end
    local function host(wire, ...)
        add("host", wire, WORLDS, ...)
    end
    local both, seq, either = { "os", "ts" }, { "seq" }, { "seq", "dep" }

    peer({ 1 }, { "os" }, { 512 }, { 1 }, "any", seq)
    peer(WORLDS, both, { 256, 512 }, { 1 }, "any", seq)
    peer(WORLDS, both, options.pcie and { 256, 512 } or { 512 }, { 2, 4 }, "any", seq)
    peer(WORLDS, { "os" }, { 128 }, { 1 }, "own", either)
    peer(WORLDS, both, { 256, 512, 1024 }, { 1 }, "own", either)

    if options.pcie then
        peer({ 4, 6, 8 }, { "il" }, { 256, 512 }, { 1 }, "any", either)
        -- for switches that collapse where all store to all
        peer({ 3, 4, 5, 6, 7, 8 }, { "pt" }, { 256 }, { 1, 4 }, "any", seq)
        add("peer", "flag", WORLDS, both, { 320 }, { 1, 2 }, "any", seq)
    else
        peer(WORLDS, { "os" }, { 128, 256 }, { 2 }, "own", either)
    end

    host("tag", both, { 256, 512 }, { 1 }, "any", seq)
    host("tag", both, { 256 }, { 2 }, "any", seq)
    host("tag", { "os" }, { 256 }, { 1 }, "own", either)
    host("flag", both, { 320 }, { 1, 2, 4 }, "any", seq)
    host("flag", both, { 576 }, { 1, 2 }, "any", seq)
    return list
end

return sets
