-- The space of variants: axes, names, feasibility.

local luaunit = require "luaunit"
local files = require "gen.files"
local tactics = require "gen.tactics"
local variant = require "gen.variant"

local Space = {}

local SAMPLES = { -- of the axes that are numbers
    world = { 1, 2, 3, 4, 5, 6, 7, 8 },
    hidden = { 0, 8, 64, 4096, 1 << 20 },
    unroll = { 1, 2, 3, 4, 8 },
    threads = { 33, 128, 1024 },
}

-- Calls visit(v) for every combination; v is reused.
local function each_variant(visit)
    local v = {}
    local function descend(depth)
        local axis = tactics.axes[depth]
        if not axis then
            return visit(v)
        elseif not tactics.applies(axis, v.transport) then
            v[axis.field] = nil
            return descend(depth + 1)
        end
        for _, value in ipairs(axis.values or SAMPLES[axis.field]) do
            v[axis.field] = axis.values and value.text or value
            descend(depth + 1)
        end
    end
    descend(1)
end

local VECTOR = { op = "ar", world = 2, dtype = "bf16", hidden = 4096, algo = "os", transport = "cpu",
    wire = "flag", isa = "avx512", unroll = 4, copy = "nt" }
local PEER = { op = "ar", world = 4, dtype = "bf16", hidden = 0, algo = "os", transport = "peer",
    wire = "nan", isa = "sm90", unroll = 1, threads = 256, rank = "own", launch = "dep" }

local HOST = { op = "ar", world = 4, dtype = "f16", hidden = 0, algo = "ts", transport = "host",
    wire = "flag", isa = "sm75", unroll = 2, threads = 320, rank = "any", launch = "seq" }

local function with(changes, variant_)
    local v = {}
    for _, from in ipairs { variant_ or VECTOR, changes } do
        for field, value in pairs(from) do
            v[field] = value
        end
    end
    return v
end

-- The X(CODE, "text", number) lines of a list in abi.h.
local function list_of(header, name)
    local body = header:gsub("\\\n", " "):match("#define " .. name .. "%(X%)([^\n]*)")
    local rows = {}
    for code, text, number in body:gmatch('X%(([%w_]+), "(%w+)", (%d+)%)') do
        rows[#rows + 1] = { code = code, text = text, number = tonumber(number) }
    end
    return rows
end

function Space.test_lists_equal_abi_h()
    local header = assert(files.read("templates/abi.h"))
    local lists = 0
    for _, axis in ipairs(tactics.axes) do
        if axis.list then
            local ours = {}
            for i, row in ipairs(axis.values) do
                ours[i] = { code = row.code, text = row.text, number = row.number }
            end
            luaunit.assertEquals(ours, list_of(header, axis.list), axis.list)
            lists = lists + 1
        end
    end
    local _, defined = header:gsub("#define RF_%w+_LIST%(X%)", "")
    luaunit.assertEquals(lists, defined)
end

function Space.test_largest_world_equals_abi_h()
    local header = assert(files.read("templates/abi.h"))
    local most = tonumber(header:match("#define RF_MAX_WORLD (%d+)"))
    luaunit.assertEquals(tactics.axis.world.max, most)
end

function Space.test_every_axis_fits_its_field_of_rf_variant()
    local limits = { op = 255, world = 255, dtype = 255, algo = 255, transport = 255, wire = 255,
        isa = 255, copy = 255, unroll = 65535, hidden = (1 << 32) - 1, threads = 65535, by_rank = 255,
        flags = (1 << 32) - 1 }
    for _, axis in ipairs(tactics.axes) do
        local most = axis.max
        for _, row in ipairs(axis.values or {}) do
            most = math.max(most or 0, row.number)
        end
        luaunit.assertTrue(most <= limits[axis.c or axis.field], axis.field)
    end
end

function Space.test_flags_are_those_of_abi_h()
    local header = assert(files.read("templates/abi.h"))
    local function flag(name)
        return tonumber(header:match("#define RF_VARIANT_" .. name .. " +(%d+)u"))
    end
    luaunit.assertEquals(tactics.flags(with({}, PEER)), flag "DEPENDENT")
    luaunit.assertEquals(tactics.flags(with({ launch = "seq" }, PEER)), 0)
    luaunit.assertEquals(tactics.flags(with({ algo = "il" }, PEER)), flag "REASSOC" | flag "DEPENDENT")
    luaunit.assertEquals(tactics.flags(VECTOR), 0)
end

function Space.test_name_is_as_documented()
    luaunit.assertEquals(variant.name(with { hidden = 0 }), "ar_w2_bf16_h0_os_cpu_flag_avx512_u4_nt")
    luaunit.assertEquals(variant.name(PEER), "ar_w4_bf16_h0_os_peer_nan_sm90_u1_t256_own_dep")
end

function Space.test_names_round_trip_over_the_whole_space()
    local n = 0
    each_variant(function(v)
        local name = variant.name(v)
        local parsed, reason = variant.parse(name)
        if not parsed then
            luaunit.fail(name .. ": " .. reason)
        end
        for field, value in pairs(v) do -- so no two have one name
            if parsed[field] ~= value then
                luaunit.fail(name .. ": " .. field)
            end
        end
        if not name:find("^[a-z][a-z0-9_]*$") or #name > 95 then
            luaunit.fail(name)
        end
        n = n + 1
    end)
    luaunit.assertTrue(n > 10000)
end

function Space.test_parse_refuses()
    local good = variant.name(VECTOR)
    local cases = {
        { "", 'op is ""' },
        { "zz" .. good:sub(3), 'op is "zz"' },
        { good:gsub("w2", "w9"), 'world is "w9", expected w and an integer from 1 to 8' },
        { good:gsub("w2", "w0"), 'world is "w0"' },
        { good:gsub("w2", "w02"), 'world is "w02"' },
        { good:gsub("w2", "w2.0"), 'world is "w2.0"' },
        { good:gsub("w2", "2"), 'world is "2"' },
        { good:gsub("h4096", "h4097000000000000000000"), "hidden is" },
        { good:gsub("bf16", "BF16"), 'dtype is "BF16", expected one of f32, bf16, f16' },
        { good:gsub("_nt$", ""), 'copy is ""' },
        { good .. "_", '"_" follows the last field, copy' },
        { good .. "_x", '"_x" follows the last field, copy' },
        { good .. "\n", "copy is" },
        { " " .. good, "op is" },
    }
    for _, case in ipairs(cases) do
        local v, reason = variant.parse(case[1])
        luaunit.assertNil(v, case[1])
        luaunit.assertStrContains(reason, case[2])
    end
end

function Space.test_feasible_says_why_not()
    luaunit.assertTrue(tactics.feasible(VECTOR))
    luaunit.assertTrue(tactics.feasible(with { isa = "scalar", hidden = 0, unroll = 1, copy = "ca" }))
    luaunit.assertTrue(tactics.feasible(with { algo = "ts", hidden = 0 }))
    local cases = {
        { { world = 9 }, "world is 9, expected an integer from 1 to 8" },
        { { world = "2" }, 'world is "2"' },
        { { world = 2.5 }, "world is 2.5" },
        { { dtype = "f64" }, 'dtype is "f64", expected one of f32, bf16, f16' },
        { { isa = false }, "isa is false" },
        { { wire = "nan" }, "transport cpu signals through wire flag, not nan" },
        { { isa = "sm90" }, "sm90 code cannot use transport cpu" },
        { { transport = "peer", wire = "nan", isa = "sm90" }, "transport peer has no copy" },
        { { algo = "ts", hidden = 0, world = 1 }, "the world is 1" },
        { { algo = "pt" }, "transport cpu, wire flag: only stores to peers are worth an order" },
        { { hidden = 4100 }, "a row of 4100 bf16 has 8200 bytes, no whole number of 16-byte packs" },
        { { algo = "ts" }, "hidden gains nothing" },
        { { isa = "scalar" }, "the net, not a contender" },
        { { isa = "scalar", hidden = 0, unroll = 1 }, "the net, not a contender" },
        { { unroll = 3 }, "unroll 3 is no power of two" },
        { { hidden = 4128 }, "a row of 4128 elements is no whole number of 4 x 16 lanes" },
    }
    for _, case in ipairs(cases) do
        local feasible, reason = tactics.feasible(with(case[1]))
        luaunit.assertFalse(feasible, case[2])
        luaunit.assertStrContains(reason, case[2])
    end
    luaunit.assertTrue(tactics.feasible(PEER))
    luaunit.assertTrue(tactics.feasible(with({ algo = "pt", world = 3 }, PEER)))
    luaunit.assertTrue(tactics.feasible(with({ wire = "flag", threads = 192, world = 2 }, PEER)))
    cases = {
        { { threads = 33 }, "33 threads are no whole number of warps" },
        { { threads = 2048 }, "threads is 2048, expected an integer from 32 to 1024" },
        { { threads = 1024, unroll = 4 }, "take about 136 registers, 1024 threads leave 64 each" },
        { { hidden = 4096 }, "hidden gains nothing" },
        { { isa = "sm80" }, "sm80 has no dependent launch" },
        { { isa = "avx2" }, "avx2 code cannot use transport peer" },
        { { copy = "ca" }, "transport peer has no copy" },
        { { algo = "il" }, "to know the rank gains nothing" },
        { { algo = "il", rank = "any", world = 2 }, "are no way to part 2" },
        { { algo = "il", rank = "any", world = 7 }, "are no way to part 7" },
        { { algo = "il", rank = "any", hidden = 4096 }, "hidden gains nothing" },
        { { algo = "il", rank = "any", wire = "flag", threads = 320 }, "wire flag: islands store" },
        { { wire = "tag" }, "transport peer signals through wire nan or flag, not tag" },
        { { wire = "flag", threads = 128 }, "two warps of a ring's block announce and watch" },
        { { wire = "flag", threads = 320, world = 1 }, "nothing is read from peers in a world of 1" },
        { { algo = "pt", world = 2 }, "two ranks have one writer and one reader each in the plain two-shot" },
        { { algo = "pt", world = 1 }, "the world is 1" },
        { { algo = "pt", wire = "flag", threads = 320 },
            "transport peer, wire flag: only stores to peers are worth an order" },
        { { algo = "pt", hidden = 4096 }, "two-shot splits the call by packs, not by rows" },
    }
    luaunit.assertTrue(tactics.feasible(with({ algo = "il", rank = "any" }, PEER)))
    for _, case in ipairs(cases) do
        local feasible, reason = tactics.feasible(with(case[1], PEER))
        luaunit.assertFalse(feasible, case[2])
        luaunit.assertStrContains(reason, case[2])
    end
    luaunit.assertTrue(tactics.feasible(HOST))
    luaunit.assertTrue(tactics.feasible(with({ wire = "tag", algo = "os", threads = 64 }, HOST)))
    cases = {
        { { algo = "il" }, "transport host has no islands" },
        { { wire = "nan" }, "transport host signals through wire tag or flag, not nan" },
        { { world = 1, algo = "os" }, "nothing goes through host memory in a world of 1" },
        { { threads = 64 }, "64 threads: two warps of a ring's block announce and watch" },
        { { world = 8, unroll = 4 }, "take about 408 registers" },
        { { isa = "avx512" }, "avx512 code cannot use transport host" },
        { { algo = "pt" }, "transport host, wire flag: only stores to peers are worth an order" },
        { { copy = "ca" }, "transport host has no copy" },
        { { hidden = 4096 }, "hidden gains nothing" },
    }
    for _, case in ipairs(cases) do
        local feasible, reason = tactics.feasible(with(case[1], HOST))
        luaunit.assertFalse(feasible, case[2])
        luaunit.assertStrContains(reason, case[2])
    end
end

function Space.test_feasible_always_answers()
    local yes, no = 0, 0
    each_variant(function(v)
        local feasible, reason = tactics.feasible(v)
        if feasible == true and reason == nil then
            yes = yes + 1
        elseif feasible == false and type(reason) == "string" then
            no = no + 1
        else
            luaunit.fail(variant.name(v))
        end
    end)
    luaunit.assertTrue(yes > 100 and no > 100)
end

function Space.test_fuzzed_names_parse_to_themselves_or_not_at_all()
    math.randomseed(20261129)
    local alphabet = "aw_hu0123456789bfoscptlgvxnk \n\0"
    local good = variant.name(VECTOR)
    local parsed = 0
    for _ = 1, 20000 do
        local name = good
        for _ = 1, math.random(3) do
            local at, c = math.random(#name), math.random(#alphabet)
            local skip = math.random(0, 1)
            name = name:sub(1, at - 1) .. alphabet:sub(c, c) .. name:sub(at + skip)
        end
        local v, reason = variant.parse(name)
        if v then
            parsed = parsed + 1
            luaunit.assertEquals(variant.name(v), name)
        else
            luaunit.assertIsString(reason)
        end
    end
    luaunit.assertTrue(parsed > 0)
end

return { Space = Space }
