-- What a variant is (its axes), and which variants may exist (feasible). The only place that knows;
-- SKU files, names, the registry and the tests ask here.

local tactics = {}

-- How many times as many registers a two-shot kernel takes there, by wire and rank (ptxas 13.0).
local BLACKWELL = { ["nan own"] = 1.8, ["nan any"] = 2.1, ["tag any"] = 1.8, ["flag any"] = 1.3 }

-- The axes, in the order of a variant's name. An axis is either a list of the X-macro `list` in
-- templates/abi.h - rows of {text, code, number} equal to its lines, plus what the rules below need
-- and what --explain says `about` them - or a number with a prefix, or a choice that sets the field
-- `c` of rf_variant. tests/codegen compares all with abi.h. `only`: transports of another family
-- have no such axis. A transport's family is its folder of templates.
tactics.axes = {
    { field = "op", list = "RF_OP_LIST", values = {
        { text = "ar", code = "ALL_REDUCE", number = 0 },
    } },
    { field = "world", prefix = "w", min = 1, max = 8 },
    { field = "dtype", list = "RF_DTYPE_LIST", values = {
        { text = "f32", code = "F32", number = 0, bytes = 4 },
        { text = "bf16", code = "BF16", number = 1, bytes = 2 },
        { text = "f16", code = "F16", number = 2, bytes = 2 },
    } },
    { field = "hidden", prefix = "h", min = 0, max = 1 << 20 }, -- 0: any
    { field = "algo", list = "RF_ALGO_LIST", values = {
        { text = "os", code = "ONE_SHOT", number = 0, about = "every rank gets all tensors and sums them" },
        { text = "ts", code = "TWO_SHOT", number = 1, about = "every rank sums a part, and all get the sums" },
        { text = "il", code = "ISLANDS", number = 2, flags = 1, -- RF_VARIANT_REASSOC
            about = "two halves sum for themselves, then only sums cross" },
        { text = "pt", code = "PERMUTED", number = 3,
            about = "two-shot in which all store to one rank at a time" },
    } },
    { field = "transport", list = "RF_TRANSPORT_LIST", values = {
        { text = "cpu", code = "CPU", number = 0, wires = { "flag" }, family = "cpu", source = "c",
            arch = "x86-64", about = "memory that the processes share" },
        { text = "peer", code = "PEER", number = 1, wires = { "nan", "flag" }, family = "cuda", source = "cu",
            arch = "cuda", about = "the GPUs' own memory" },
        { text = "host", code = "HOST", number = 2, wires = { "tag", "flag" }, family = "cuda",
            source = "cu", arch = "cuda", about = "pinned memory of the host" },
    } },
    { field = "wire", list = "RF_WIRE_LIST", values = {
        { text = "flag", code = "FLAG", number = 0,
            about = "data in the writer's own memory, which the others read when they are told" },
        { text = "nan", code = "NAN", number = 1,
            about = "data in the readers' memory: a word has come when it is no longer a certain NaN" },
        { text = "tag", code = "TAG", number = 2,
            about = "vectors of 12 or 14 bytes of data and a tag that says of which call they are" },
    } },
    { field = "isa", list = "RF_ISA_LIST", values = {
        { text = "scalar", code = "SCALAR", number = 0, family = "cpu", lanes = 1 },
        { text = "avx2", code = "AVX2", number = 1, family = "cpu", lanes = 8 },
        { text = "avx512", code = "AVX512", number = 2, family = "cpu", lanes = 16 },
        { text = "sm75", code = "SM75", number = 8, family = "cuda" },
        { text = "sm80", code = "SM80", number = 9, family = "cuda" },
        { text = "sm86", code = "SM86", number = 10, family = "cuda" },
        { text = "sm89", code = "SM89", number = 11, family = "cuda" },
        { text = "sm90", code = "SM90", number = 12, family = "cuda" },
        { text = "sm100", code = "SM100", number = 13, family = "cuda", two_shot_more = BLACKWELL },
        { text = "sm120", code = "SM120", number = 14, family = "cuda", two_shot_more = BLACKWELL },
    } },
    { field = "unroll", prefix = "u", min = 1, max = 8 }, -- vectors in flight per loop turn
    { field = "copy", only = "cpu", list = "RF_COPY_LIST", values = {
        { text = "ca", code = "CACHED", number = 0 },
        { text = "nt", code = "STREAMING", number = 1 },
    } },
    { field = "threads", only = "cuda", prefix = "t", min = 32, max = 1024 }, -- of a block
    { field = "rank", only = "cuda", c = "by_rank", values = {
        { text = "any", code = "read from the params", number = 0 },
        { text = "own", code = "known: one kernel per rank", number = 1 },
    } },
    { field = "launch", only = "cuda", c = "flags", values = {
        { text = "seq", code = "after the stream's previous kernel", number = 0 },
        { text = "dep", code = "before it has ended, and waits", number = 4 }, -- RF_VARIANT_DEPENDENT
    } },
}

tactics.axis = {} -- by field
tactics.row = {} -- by field, then by text: the row of `values`
for _, axis in ipairs(tactics.axes) do
    tactics.axis[axis.field] = axis
    local rows = {}
    for _, row in ipairs(axis.values or {}) do
        rows[row.text] = row
    end
    tactics.row[axis.field] = rows
end

local PACK = 16 -- bytes that kernels move at once; rows have to be whole packs

-- Do variants of this transport have the axis?
function tactics.applies(axis, transport)
    return not axis.only or axis.only == tactics.row.transport[transport].family
end

-- What an axis admits, in words.
function tactics.expected(axis)
    if not axis.values then
        return ("an integer from %d to %d"):format(axis.min, axis.max)
    end
    local texts = {}
    for i, row in ipairs(axis.values) do
        texts[i] = row.text
    end
    return (#texts > 1 and "one of " or "") .. table.concat(texts, ", ")
end

-- Is `value` on the axis? true, or false and what was found and expected.
function tactics.admits(axis, value)
    local known
    if axis.values then
        known = tactics.row[axis.field][value] ~= nil
    else
        known = math.type(value) == "integer" and value >= axis.min and value <= axis.max
    end
    if known then
        return true
    end
    local found = type(value) == "string" and '"' .. value .. '"' or tostring(value)
    return false, ("%s is %s, expected %s"):format(axis.field, found, tactics.expected(axis))
end

-- Does a row of `hidden` elements consist of whole packs? true, or false and the reason.
function tactics.whole_rows(hidden, dtype)
    local bytes = hidden * tactics.row.dtype[dtype].bytes
    if bytes % PACK == 0 then
        return true
    end
    return false, ("a row of %d %s has %d bytes, no whole number of %d-byte packs")
        :format(hidden, dtype, bytes, PACK)
end

-- Registers that a thread of a CUDA kernel takes, about, so that ptxas spills none, and most that it may
-- have (they come in eights). Fitted to what ptxas 13.0 said of sm90 and sm120.
function tactics.registers(v)
    local flag, two_shot = v.wire == "flag", v.algo ~= "os"
    local more = two_shot and v.algo ~= "pt" and tactics.row.isa[v.isa].two_shot_more or {}
    local n = 40 + 4 * v.unroll * (v.world + 2) -- packs of every rank, own and ahead
    n = n + (flag and 2 * v.unroll * v.world or 0) -- where they lie
    n = n + (two_shot and (flag and 4 * v.unroll * (v.world - 1) or v.world) or 0) -- and those to send
    n = n + (v.rank == "any" and v.unroll * v.world or 0)
    return math.floor(n * (more[v.wire .. " " .. v.rank] or 1)), math.min(255, 65536 // v.threads // 8 * 8)
end

-- Why a variant cannot be: each rule returns the reason, or nil. `isa` is the row of v.isa.
local rules = {
    function(v)
        local wires = tactics.row.transport[v.transport].wires
        for _, wire in ipairs(wires) do
            if wire == v.wire then
                return nil
            end
        end
        return ("transport %s signals through wire %s, not %s")
            :format(v.transport, table.concat(wires, " or "), v.wire)
    end,
    function(v, isa)
        return tactics.row.transport[v.transport].family ~= isa.family
            and ("%s code cannot use transport %s"):format(v.isa, v.transport)
    end,
    function(v)
        return v.transport == "host" and v.world == 1
            and "nothing goes through host memory in a world of 1"
    end,
    function(v)
        return v.transport == "peer" and v.wire == "flag" and v.world == 1
            and "nothing is read from peers in a world of 1"
    end,
    function(v)
        return v.algo ~= "os" and v.world == 1
            and "two-shot needs another rank to share the sums with, the world is 1"
    end,
    function(v)
        return v.algo == "il" and (v.world < 4 or v.world % 2 == 1)
            and ("two islands of the same size, two ranks at least, are no way to part %d"):format(v.world)
    end,
    function(v)
        return v.algo == "il" and v.transport ~= "peer"
            and ("transport %s has no islands: they save crossings between peers"):format(v.transport)
    end,
    function(v)
        return v.algo == "il" and v.rank == "own"
            and "a rank's place in its island comes from the topology: to know the rank gains nothing"
    end,
    function(v)
        return v.algo == "il" and v.wire ~= "nan"
            and ("wire %s: islands store into their peers' memory, over nan"):format(v.wire)
    end,
    function(v)
        return v.algo == "pt" and (v.transport ~= "peer" or v.wire ~= "nan")
            and ("transport %s, wire %s: only stores to peers are worth an order"):format(v.transport, v.wire)
    end,
    function(v)
        return v.algo == "pt" and v.world == 2
            and "two ranks have one writer and one reader each in the plain two-shot too"
    end,
    function(v)
        local whole, reason = tactics.whole_rows(v.hidden, v.dtype)
        return not whole and reason
    end,
    function(v)
        return v.algo ~= "os" and v.hidden > 0
            and "two-shot splits the call by packs, not by rows: hidden gains nothing"
    end,
    function(v)
        return v.threads and v.hidden > 0
            and "cuda kernels walk packs of the whole tensor, never rows: hidden gains nothing"
    end,
    function(v)
        return v.isa == "scalar" and (v.hidden > 0 or v.unroll > 1 or v.copy ~= "ca")
            and "scalar code is the net, not a contender: h0, u1 and ca only"
    end,
    function(v)
        return v.unroll & (v.unroll - 1) ~= 0
            and ("unroll %d is no power of two"):format(v.unroll)
    end,
    function(v)
        return v.threads and v.threads % 32 ~= 0
            and ("%d threads are no whole number of warps"):format(v.threads)
    end,
    function(v)
        return v.threads and v.wire == "flag" and v.threads < 192
            and ("%d threads: two warps of a ring's block announce and watch, four at least have to work")
                :format(v.threads)
    end,
    function(v)
        if not v.threads then
            return false
        end
        local needed, most = tactics.registers(v)
        return needed > most and ("%d packs of %d ranks in flight take about %d registers, %d threads "
            .. "leave %d each"):format(v.unroll, v.world, needed, v.threads, most)
    end,
    function(v)
        return v.launch == "dep" and tonumber(v.isa:sub(3)) < 90
            and v.isa .. " has no dependent launch, which came with sm90"
    end,
    function(v, isa)
        local turn = (isa.lanes or 1) * v.unroll
        return v.hidden % turn ~= 0
            and ("a row of %d elements is no whole number of %d x %d lanes")
                :format(v.hidden, v.unroll, isa.lanes)
    end,
}

-- May this variant exist? true, or false and the reason. `v` holds one value per axis.
function tactics.feasible(v)
    for _, axis in ipairs(tactics.axes) do
        if tactics.applies(axis, v.transport) then
            local known, reason = tactics.admits(axis, v[axis.field])
            if not known then
                return false, reason
            end
        elseif v[axis.field] ~= nil then
            return false, ("transport %s has no %s"):format(v.transport, axis.field)
        end
    end
    local isa = tactics.row.isa[v.isa]
    for _, rule in ipairs(rules) do
        local reason = rule(v, isa)
        if reason then
            return false, reason
        end
    end
    return true
end

-- The net below everything, for each transport: code for any shape of its op, world and dtype, on
-- every rank. One-shot between peers is none, since it needs world times the room; nor is wire tag,
-- whose slots are small.
local function net(v)
    if v.transport == "cpu" then
        return { isa = "scalar", hidden = 0 }
    end
    return { algo = v.world == 1 and "os" or "ts", wire = v.transport == "host" and "flag" or "nan",
        hidden = 0, rank = "any", launch = "seq" }
end

function tactics.is_net(v)
    for field, value in pairs(net(v)) do
        if v[field] ~= value then
            return false
        end
    end
    return true
end

-- What makes a variant like v the net, in words.
function tactics.net_text(v)
    local wanted, words = net(v), {}
    for _, field in ipairs { "isa", "hidden", "algo", "wire", "rank", "launch" } do
        words[#words + 1] = wanted[field] and field .. " " .. wanted[field]
    end
    return table.concat(words, ", ")
end

-- What v is apart from its numbers: the values of the other axes, as text.
function tactics.kind(v)
    local words = {}
    for _, axis in ipairs(tactics.axes) do
        if axis.values and v[axis.field] ~= nil then
            words[#words + 1] = v[axis.field]
        end
    end
    return table.concat(words, " ")
end

-- RF_VARIANT_ flags: of its algorithm and its way to be launched.
function tactics.flags(v)
    return (tactics.row.algo[v.algo].flags or 0) | (v.launch and tactics.row.launch[v.launch].number or 0)
end

-- Kernels that a variant is compiled to.
function tactics.kernels(v)
    return v.rank == "own" and v.world or 1
end

return tactics
