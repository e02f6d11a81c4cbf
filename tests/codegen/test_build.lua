-- The build around the generator: ninja's view of a fresh clone, of edits and of nothing to do, and
-- the packs that come out. The SKUs are cut down, so that this takes seconds.

local luaunit = require "luaunit"
local files = require "gen.files"
local helper = require "tests.codegen.helper"

local Build = {}

local SMALL = "generated/cpu_small/librankfold_cpu_small.a"
local CPU = "generated/cpu/librankfold_cpu.a"

local function clone()
    local root = helper.tree()
    local out, code = helper.sh(("cp -r build.ninja runtime '%s/' && rm -r '%s/generated'")
        :format(root, root))
    assert(code == 0, out)
    helper.write(root .. "/gen/sku/cpu_small.lua", helper.sku { world = "{ 1, 2, 3 }" })
    helper.write(root .. "/gen/sku/cpu.lua", helper.sku { dtype = '{ "f32", "bf16" }' })
    return root
end

local function ninja(root, targets)
    local out, code = helper.sh(("cd '%s' && ninja %s"):format(root, targets))
    luaunit.assertEquals(code, 0, out)
    return out
end

local function assert_nothing_to_do(root, targets)
    luaunit.assertStrContains(ninja(root, targets), "ninja: no work to do.")
end

function Build.test_fresh_clone_edits_and_nothing_to_do()
    local root = clone()
    local archive = root .. "/" .. SMALL

    luaunit.assertStrContains(ninja(root, SMALL), "gen: SKU cpu_small: 3 kernels in 3 shards")
    assert_nothing_to_do(root, SMALL)
    luaunit.assertNil(files.read(root .. "/" .. CPU), "only requested SKUs are made")

    -- every kind of input
    local before = files.read(archive)
    helper.edit(root .. "/templates/cpu/kernel.c.tmpl", "{\n", "{\n    (void)p;\n")
    luaunit.assertStrContains(ninja(root, SMALL), "files changed")
    luaunit.assertTrue(files.read(archive) ~= before)
    assert_nothing_to_do(root, SMALL)

    before = files.read(archive)
    helper.edit(root .. "/templates/cpu/all_reduce.h", "RF_INLINE", "#define NEW 1\nRF_INLINE")
    luaunit.assertStrContains(ninja(root, SMALL), "files changed") -- hashes
    luaunit.assertTrue(files.read(archive) ~= before)
    assert_nothing_to_do(root, SMALL)

    helper.write(root .. "/gen/sku/cpu_small.lua", helper.sku())
    luaunit.assertStrContains(ninja(root, SMALL), "gen: SKU cpu_small: 2 kernels in 2 shards")
    assert_nothing_to_do(root, SMALL)

    helper.edit(root .. "/gen/render.lua", "render.MOST_KERNELS = 50", "render.MOST_KERNELS = 20")
    luaunit.assertStrContains(ninja(root, SMALL), "sku cpu_small")
    assert_nothing_to_do(root, SMALL)

    -- a comment: the generator looks and changes nothing
    helper.edit(root .. "/templates/cpu/all_reduce.h", "RF_INLINE", "/* why */ RF_INLINE")
    luaunit.assertNil(ninja(root, SMALL):find("files changed"))
    assert_nothing_to_do(root, SMALL)

    -- what was removed comes back
    before = files.read(archive)
    assert(helper.sh(("rm -r '%s/generated/cpu_small'"):format(root)) == "")
    ninja(root, SMALL)
    luaunit.assertTrue(files.read(archive) == before)
    assert_nothing_to_do(root, SMALL)
    assert(helper.sh(("rm '%s.d'"):format(archive)) == "")
    luaunit.assertStrContains(ninja(root, SMALL), "sku cpu_small")
    assert_nothing_to_do(root, SMALL)
    assert(helper.sh(("rm -r '%s/generated'"):format(root)) == "")
    ninja(root, SMALL)
    luaunit.assertTrue(files.read(archive) == before)
    assert_nothing_to_do(root, SMALL)

    -- an error stops, names the field, and is forgotten when mended
    local good = files.read(root .. "/gen/sku/cpu_small.lua")
    helper.write(root .. "/gen/sku/cpu_small.lua", helper.sku { world = "{ 9 }" })
    local out, code = helper.sh(("cd '%s' && ninja %s"):format(root, SMALL))
    luaunit.assertNotEquals(code, 0)
    luaunit.assertStrContains(out, "gen: gen/sku/cpu_small.lua: sets[1].world[1]: world is 9")
    luaunit.assertTrue(files.read(archive) == before)
    helper.write(root .. "/gen/sku/cpu_small.lua", good)
    ninja(root, SMALL)
    luaunit.assertTrue(files.read(archive) == before)
    assert_nothing_to_do(root, SMALL)
end

function Build.test_packs_link_together_and_hold_what_the_generator_says()
    local root = clone()
    ninja(root, SMALL .. " " .. CPU)
    local out, code = helper.sh(("cc -std=c11 -Wall -Wextra -Werror -Itemplates -o '%s/registry' "
        .. "tests/codegen/registry.c '%s/%s' '%s/%s' && '%s/registry'")
        :format(root, root, CPU, root, SMALL, root))
    luaunit.assertEquals(code, 0, out)
    luaunit.assertNil(out:find("WRONG"), out)
    luaunit.assertStrMatches(out:match("cpu_small: ([^\n]*)"), "%w+ %d+%..*, %-std=c11 %-O2.*")
    for _, sku in ipairs { "cpu", "cpu_small" } do
        local found = {}
        for shard, name, hash in out:gmatch("\n?" .. sku .. " (%S+) (%S+) (%x+)") do
            found[#found + 1] = ("%s %s %s"):format(name, shard, hash)
        end
        local listed = {}
        for name, shard, hash in helper.gen(root, sku .. " --list"):gmatch("(%S+) +(%S+) +(%x+)\n") do
            listed[#listed + 1] = ("%s %s %s"):format(name, shard, hash)
        end
        table.sort(found)
        table.sort(listed)
        luaunit.assertEquals(found, listed)
    end
    luaunit.assertStrContains(out, " 2 1 0 0 1\n") -- world 2, bf16, one-shot, scalar, unroll 1
end

function Build.test_packs_export_prefixed_names_only_and_need_their_abi()
    local root = clone()
    ninja(root, CPU)
    local names = helper.sh(("nm -g --defined-only '%s/%s' | sed -n 's/^[0-9a-f]* . //p'")
        :format(root, CPU))
    local n = 0
    for name in names:gmatch("%S+") do
        luaunit.assertStrMatches(name, "rfi?_[%w_]+")
        n = n + 1
    end
    luaunit.assertEquals(n, 5) -- the pack and its shards
    local undefined = helper.sh(("nm -u '%s/%s'"):format(root, CPU))
    luaunit.assertStrContains(undefined, "U rfi_abi_4\n")
end

function Build.test_archives_are_the_same_bytes_in_any_folder()
    local a, b = clone(), clone()
    ninja(a, CPU)
    local out, code = helper.sh(("cd '%s' && umask 077 && TZ=Asia/Tokyo LC_ALL=tr_TR.UTF-8 ninja -j1 %s")
        :format(b, CPU))
    luaunit.assertEquals(code, 0, out)
    luaunit.assertTrue(files.read(a .. "/" .. CPU) == files.read(b .. "/" .. CPU))
end

return { Build = Build }
