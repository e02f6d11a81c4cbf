-- Sets that several SKUs share. SKU files call these functions by name, and add what is theirs.

local format = string.format -- SKU files run without string methods

local sets = {}

local WORLDS = { 2, 3, 4, 5, 6, 7, 8 }
local KNOWN = { isa = "string", pcie = "boolean", known_ranks = "boolean" }

-- What is worth a choice on NVIDIA GPUs, between peers and through host memory. `options`:
--     isa          of the code
--     pcie         peers are reached through PCIe: more packs in flight to choose from
--     known_ranks  false: no kernels that know their rank
-- What was measured on two H200s over NVLink: such kernels beat the others up to 1 MiB by 0.1 to 0.2 us
-- (5 to 8 %), dependent launch saves another 0.3 to 0.4 us where the caller allows it, and more packs in
-- flight per thread gain nothing where the grid can grow instead, so that two sizes of it are left for
-- the largest tensors.
function sets.gpu(options)
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

    host("e12", both, { 256, 512 }, { 1 }, "any", seq)
    host("e12", both, { 256 }, { 2 }, "any", seq)
    host("e12", { "os" }, { 256 }, { 1 }, "own", either)
    host("flag", both, { 320 }, { 1, 2, 4 }, "any", seq)
    host("flag", both, { 576 }, { 1, 2 }, "any", seq)
    return list
end

return sets
