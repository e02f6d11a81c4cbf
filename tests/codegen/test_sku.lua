-- SKU files: the ones in the tree, and all the ways to get one wrong.

local lfs = require "lfs"
local luaunit = require "luaunit"
local files = require "gen.files"
local sku = require "gen.sku"
local tactics = require "gen.tactics"
local helper = require "tests.codegen.helper"

local Sku = {}

local function load_all()
    local out = {}
    for file in lfs.dir("gen/sku") do
        local name = file:match("^([%w_]+)%.lua$")
        if name then
            local path = "gen/sku/" .. file
            out[name] = assert(sku.parse(assert(files.read(path)), path, name))
        end
    end
    return out
end

function Sku.test_the_trees_skus_are_sorted_feasible_and_small()
    for name, parsed in pairs(load_all()) do
        for i, entry in ipairs(parsed.variants) do
            luaunit.assertTrue(tactics.feasible(entry.v), entry.name)
            luaunit.assertTrue(i == 1 or parsed.variants[i - 1].name < entry.name, entry.name)
        end
        luaunit.assertTrue(#parsed.variants <= 3000, name)
    end
end

-- Its table of GPU packs: | `h200` | H100, H200 (sm_90) | 759 | 1,989 | ...
function Sku.test_the_readme_counts_what_there_is()
    local skus, rows = load_all(), 0
    for name, variants, kernels in files.read("README.md"):gmatch("\n| `(%w+)` | [^|]+ | ([%d,]+) | ([%d,]+) |") do
        local found = 0
        for _, entry in ipairs(skus[name].variants) do
            found = found + tactics.kernels(entry.v)
        end
        luaunit.assertEquals(variants:gsub(",", ""), tostring(#skus[name].variants), name)
        luaunit.assertEquals(kernels:gsub(",", ""), tostring(found), name)
        rows = rows + 1
    end
    luaunit.assertEquals(rows, 7)
end

function Sku.test_the_cpu_sku_is_complete()
    local seen = {}
    local parsed = load_all().cpu
    for _, entry in ipairs(parsed.variants) do
        local v = entry.v
        seen[("%d %s %s %s"):format(v.world, v.dtype, v.isa, v.algo)] = true
    end
    for world = 1, 8 do
        for _, dtype in ipairs { "f32", "bf16", "f16" } do
            for _, isa in ipairs { "scalar", "avx2", "avx512" } do
                luaunit.assertTrue(seen[("%d %s %s os"):format(world, dtype, isa)])
                luaunit.assertEquals(seen[("%d %s %s ts"):format(world, dtype, isa)],
                    world > 1 or nil)
            end
        end
    end
    luaunit.assertTrue(#parsed.variants <= 600)
end

function Sku.test_infeasible_combinations_are_dropped_with_reasons()
    local parsed = assert(sku.parse(helper.sku { algo = '{ "os", "ts" }' }, "x.lua", "x"))
    luaunit.assertEquals(#parsed.variants, 3)
    luaunit.assertEquals(#parsed.refused, 1)
    luaunit.assertStrContains(parsed.refused[1].reason, "the world is 1")
end

local function sets(...)
    return ('return { about = "test", sets = { %s } }'):format(table.concat({ ... }, ", "))
end

-- The set inside a file that helper.sku wrote.
local function set_of(axes)
    return helper.sku(axes):match("sets = { (.*) } }\n$")
end

function Sku.test_bad_files_are_refused_with_file_field_and_reason()
    local many = {}
    for i = 1, 2000 do
        many[i] = 64 * i
    end
    local many_hidden = "{ 0, " .. table.concat(many, ", ") .. " }"
    local cases = {
        { "return {", "x.lua:1:" },
        { "\27Lua", "x.lua: attempt to load a binary chunk" },
        { "", "x.lua: returns a nil, expected a table" },
        { "return 7", "x.lua: returns a number, expected a table" },
        { "return {}", "x.lua: about: expected one line of plain text" },
        { 'return { about = "a\\nb" }', "x.lua: about: expected one line" },
        { 'return { about = "a */ b" }', "x.lua: about: expected one line" },
        { 'return { about = "a" }', "x.lua: sets: is missing, expected a list of sets" },
        { 'return { about = "a", sets = 7 }', "x.lua: sets: is a number" },
        { 'return { about = "a", sets = {} }', "x.lua: sets: is empty" },
        { 'return { about = "a", sets = {}, colour = 1 }', "x.lua: colour: unknown field" },
        { 'return { about = "a", sets = { 7 } }', "x.lua: sets[1]: is a number" },
        { sets(set_of(), "x = 1"), "x.lua: sets: unknown field x in a list" },
        { helper.sku { world = "{ 1, 9 }" },
            "x.lua: sets[1].world[2]: world is 9, expected an integer from 1 to 8" },
        { helper.sku { world = "{ 2.5 }" }, "x.lua: sets[1].world[1]: world is 2.5" },
        { helper.sku { world = '{ "2" }' }, 'x.lua: sets[1].world[1]: world is "2"' },
        { helper.sku { world = "{ 1, nil, 2 }" }, "x.lua: sets[1].world" },
        { helper.sku { world = "{}" }, "x.lua: sets[1].world: is empty" },
        { helper.sku { world = "2" }, "x.lua: sets[1].world: is a number, expected a list" },
        { helper.sku { world = "{ 1, 2, 1 }" }, "x.lua: sets[1].world[3]: 1 is listed twice" },
        { helper.sku { world = "{ 1, n = 2 }" }, "x.lua: sets[1].world: unknown field n" },
        { helper.sku { world = false }, "x.lua: sets[1].world: is missing, expected a list" },
        { helper.sku { dtype = '{ "f64" }' },
            'x.lua: sets[1].dtype[1]: dtype is "f64", expected one of f32, bf16, f16' },
        { helper.sku { algo = '{ "ring" }' },
            'x.lua: sets[1].algo[1]: algo is "ring", expected one of os, ts' },
        { helper.sku { algo = "{ {} }" }, "x.lua: sets[1].algo[1]: algo is table" },
        { helper.sku { hidden = "{ 0, 4095 }" }, "x.lua: sets[1].hidden[2]: a row of 4095 f32 has "
            .. "16380 bytes, no whole number of 16-byte packs" },
        { helper.sku { tactic = '{ "os" }' }, "x.lua: sets[1].tactic: unknown field" },
        { sets(set_of(), set_of { world = "{ 2, 3 }" }),
            "x.lua: sets[2]: ar_w2_f32_h0_os_cpu_flag_scalar_u1_ca is in sets[1] already" },
        { helper.sku { wire = '{ "nan" }' }, "x.lua: sets[1]: nothing of it can be: "
            .. "ar_w1_f32_h0_os_cpu_nan_scalar_u1_ca: transport cpu signals through wire flag, not nan" },
        { sets(set_of(), set_of { isa = '{ "avx2" }', unroll = "{ 3 }" }), "x.lua: sets[2]: nothing of it can be: "
            .. "ar_w1_f32_h0_os_cpu_flag_avx2_u3_ca: unroll 3 is no power of two" },
        { helper.sku { transport = '{ "cpu", "peer" }' }, "x.lua: sets[1].transport: a set has one" },
        { helper.sku { transport = '{ "peer" }' }, "x.lua: sets[1].copy: transport peer has no such axis" },
        { helper.sku { threads = "{ 256 }" }, "x.lua: sets[1].threads: transport cpu has no such axis" },
        { helper.peer_sku { threads = false }, "x.lua: sets[1].threads: is missing, expected a list" },
        { helper.peer_sku { rank = '{ "own" }' },
            "x.lua: sets: nothing generic (hidden 0, algo ts, wire nan, rank any, launch seq) for ar, world 2" },
        { helper.peer_sku { transport = '{ "host" }', wire = '{ "tag" }' }, "x.lua: sets: nothing generic "
            .. "(hidden 0, algo ts, wire flag, rank any, launch seq) for ar, world 2, bf16, host" },
        { 'return { about = "a", sets = gpu { isa = "sm91" } }', 'x.lua: sets[1].isa[1]: isa is "sm91"' },
        { 'return { about = "a", sets = gpu { isa = "sm90", pci = true } }', "x.lua:1: gpu: pci is a boolean" },
        { 'return { about = "a", sets = gpu { isa = 90 } }', "x.lua:1: gpu: isa is a number" },
        { 'return { about = "a", sets = gpu(5) }', "x.lua:1: gpu: found a number, expected a table" },
        { "gpu = nil return gpu {}", "x.lua:1: attempt to call a nil value" },
        { helper.sku { isa = '{ "avx2" }' },
            "x.lua: sets: nothing generic (isa scalar, hidden 0) for ar, world 1, f32" },
        { helper.sku { isa = '{ "scalar", "avx2" }', hidden = many_hidden },
            "x.lua: sets: 4004 variants, at most 3000" },
        { helper.sku { hidden = many_hidden, world = "{ 1, 2, 3, 4 }", unroll = "{ 1, 2, 4, 8 }",
            isa = '{ "scalar", "avx2", "avx512" }', copy = '{ "ca", "nt" }', algo = '{ "os", "ts" }' },
            "x.lua: sets[1]: more than 200000 combinations" },
        { "while true do end", "x.lua: does not come to an end" },
        { "local function f() return f() end return f()", "x.lua: does not come to an end" },
        { "local function f() return 1 + f() end return f()", "x.lua" },
        { 'local s = "x" while true do s = s .. s end', "x.lua: does not come to an end" },
        { "local t = {} while true do t[#t + 1] = {} end", "x.lua: does not come to an end" },
        { 'return os.execute("touch /tmp/x")', "x.lua:1: attempt to index a nil value" },
        { 'return require "os"', "x.lua:1: attempt to call a nil value" },
        { 'return ("x"):rep(1000000000)', "x.lua:1: attempt to" },
        { "error({})", "x.lua:1: attempt to call a nil value (global 'error')" },
    }
    for _, case in ipairs(cases) do
        local parsed, reason = sku.parse(case[1], "x.lua", "x")
        luaunit.assertNil(parsed, case[1])
        luaunit.assertStrContains(reason, case[2])
    end
    luaunit.assertEquals(("x"):rep(3), "xxx") -- strings have their methods back
end

function Sku.test_gpu_skus_share_their_sets()
    local function names(options, isa)
        local parsed = assert(sku.parse(('return { about = "a", sets = gpu { %s } }'):format(options), "x.lua", "x"))
        local out = {}
        for i, entry in ipairs(parsed.variants) do
            out[i] = entry.name:gsub(isa, "smXX")
        end
        return out
    end
    local h200 = names('isa = "sm90"', "sm90")
    luaunit.assertEquals(names('isa = "sm120"', "sm120"), names('isa = "sm100"', "sm100"))
    luaunit.assertTrue(#names('isa = "sm90", pcie = true', "sm90") > #h200)
    for _, name in ipairs(names('isa = "sm90", known_ranks = false', "sm90")) do
        luaunit.assertNil(name:find("_own_"), name)
    end
end

function Sku.test_the_limit_counts_kernels()
    local text = helper.peer_sku { rank = '{ "any", "own" }' } -- two variants, three kernels
    luaunit.assertNotNil(sku.parse(text, "x.lua", "x", 3))
    local parsed, reason = sku.parse(text, "x.lua", "x", 2)
    luaunit.assertNil(parsed)
    luaunit.assertStrContains(reason, "3 kernels, at most 2")
end

function Sku.test_the_limit_can_be_set()
    local text = helper.sku { world = "{ 1, 2, 3 }" }
    luaunit.assertNotNil(sku.parse(text, "x.lua", "x", 3))
    local parsed, reason = sku.parse(text, "x.lua", "x", 2)
    luaunit.assertNil(parsed)
    luaunit.assertStrContains(reason, "3 variants, at most 2")
end

function Sku.test_a_sample_has_the_smallest_variant_of_every_kind_with_peers()
    local parsed = assert(sku.parse(helper.peer_sku { world = "{ 1, 2, 3 }", algo = '{ "os", "ts" }',
        unroll = "{ 1, 2 }", threads = "{ 256, 512 }", rank = '{ "any", "own" }' }, "x.lua", "x"))
    local names = {}
    for i, entry in ipairs(sku.sample(parsed.variants, "smallest")) do
        names[i] = entry.name
    end
    luaunit.assertEquals(names, {
        "ar_w2_bf16_h0_os_peer_nan_sm90_u1_t256_any_seq", "ar_w2_bf16_h0_os_peer_nan_sm90_u1_t256_own_seq",
        "ar_w2_bf16_h0_ts_peer_nan_sm90_u1_t256_any_seq", "ar_w2_bf16_h0_ts_peer_nan_sm90_u1_t256_own_seq",
    })
end

function Sku.test_a_sample_of_the_tightest()
    local parsed = assert(sku.parse(helper.peer_sku { world = "{ 2, 3 }", unroll = "{ 1, 2, 4 }",
        threads = "{ 256, 512 }" }, "x.lua", "x"))
    local sample = sku.sample(parsed.variants, "tightest")
    luaunit.assertEquals(#sample, 1)
    luaunit.assertEquals(sample[1].name, "ar_w2_bf16_h0_ts_peer_nan_sm90_u4_t512_any_seq")
end

function Sku.test_a_sample_of_one_rank_only()
    local parsed = assert(sku.parse(helper.sku { world = "{ 1 }" }, "x.lua", "x"))
    luaunit.assertEquals(sku.sample(parsed.variants, "smallest"), parsed.variants)
end

function Sku.test_fuzzed_files_are_taken_or_refused_with_their_name()
    math.randomseed(20261129)
    local good = helper.sku()
    local bits = { "{", "}", "nil", "{}", "9", '"', "1e308", "0/0", "-1", "..", "=", ",", "sets", "\0",
        "function() end", "#", "[1]", "world" }
    local taken, refused = 0, 0
    for _ = 1, 3000 do
        local text = good
        for _ = 1, math.random(2) do
            local at = math.random(#text)
            local until_ = math.min(#text, at + math.random(0, 8))
            text = text:sub(1, at - 1) .. bits[math.random(#bits)] .. text:sub(until_)
        end
        local parsed, reason = sku.parse(text, "x.lua", "x")
        if parsed then
            taken = taken + 1
        else
            refused = refused + 1
            luaunit.assertStrContains(reason, "x.lua")
        end
    end
    luaunit.assertTrue(taken > 0 and refused > 0)
end

return { Sku = Sku }
