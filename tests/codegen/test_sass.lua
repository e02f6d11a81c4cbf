-- The machine code of the packs, kernel by kernel, against tests/codegen/rules.lua: cuda_ci, and of every
-- other SKU one kernel of each kind.

local lfs = require "lfs"
local luaunit = require "luaunit"
local files = require "gen.files"
local cuda = require "tests.codegen.cuda"
local helper = require "tests.codegen.helper"
local rules = require "tests.codegen.rules"
local sass = require "tests.codegen.sass"

local Sass = {}

Sass.setUp = cuda.need_tools

-- Kernels in the code of a fatbin.
local function kernels(fatbin)
    return sass.parse(cuda.sh("cuobjdump -sass '%s'", fatbin), cuda.sh("cuobjdump -res-usage '%s'", fatbin))
end

-- What a fatbin holds: one piece of machine code, one PTX, both for one architecture?
local function is_well_formed(fatbin)
    local parts = cuda.sh("cuobjdump -lelf -lptx '%s'", fatbin)
    return parts:match("^ELF file +1: %S+%.(sm_%d+)%.cubin\nPTX file +1: %S+%.(sm_%d+)%.ptx\n$")
end

local function complaints(kernel, v)
    local out = {}
    for _, rule in ipairs(files.sorted_keys(rules)) do
        local wrong = rules[rule](kernel, v)
        out[#out + 1] = wrong and ("%s: %s: %s"):format(kernel.name, rule, wrong) or nil
    end
    return out
end

-- What is wrong with the kernels of a pack: with their code, their names, their images.
local function check(pack)
    local wrong, found = {}, {}
    for _, fatbin in ipairs(pack.fatbins) do
        local arch = fatbin:match("_(sm%d+)[^/]*$"):gsub("sm", "sm_")
        luaunit.assertEquals({ is_well_formed(fatbin) }, { arch, arch }, fatbin)
        for _, kernel in ipairs(kernels(fatbin)) do
            local v = pack.variants[kernel.name]
            if v then
                found[kernel.name] = v
                local more = complaints(kernel, v)
                table.move(more, 1, #more, #wrong + 1, wrong)
            elseif not kernel.name:find("^rf_probe_[gp][eu]t$") then
                wrong[#wrong + 1] = kernel.name .. ": not in the registry"
            end
        end
    end
    luaunit.assertEquals(files.sorted_keys(found), files.sorted_keys(pack.variants))
    return wrong
end

function Sass.test_the_pack_for_tests()
    luaunit.assertEquals(check(cuda.pack(cuda.root, "cuda_ci")), {})
end

for file in lfs.dir("gen/sku") do
    local sku = file:match("^([%w_]+)%.lua$")
    if sku and not sku:find("^cpu") and sku ~= "cuda_ci" then
        Sass["test_one_kernel_of_every_kind_of_" .. sku] = function()
            luaunit.assertEquals(check(cuda.pack(cuda.root, sku, "--sample smallest")), {})
        end
    end
end

function Sass.test_the_tightest_of_every_kind_spill_nothing()
    luaunit.assertEquals(check(cuda.pack(cuda.root, "h200", "--only '*_bf16_*' --sample tightest")), {})
end

function Sass.test_every_rule_is_broken_by_the_kernel_of_its_name_and_by_no_sound_one()
    local fatbin = cuda.root .. "/faults.fatbin"
    cuda.sh("nvcc -fatbin -std=c++17 -gencode arch=compute_90,code=sm_90 -Itemplates -o '%s' tests/codegen/faults.cu",
        fatbin)
    luaunit.assertNil(is_well_formed(fatbin)) -- no PTX
    local v = { world = 2, threads = 1024, wire = "nan" }
    local tried = {}
    for _, kernel in ipairs(kernels(fatbin)) do
        v.launch = kernel.name == "waits_first" and "dep" or "seq"
        tried[kernel.name] = kernel.name ~= "sound" or nil
        if kernel.name == "sound" then
            luaunit.assertEquals(complaints(kernel, v), {})
        else
            luaunit.assertIsString(rules[kernel.name](kernel, v), kernel.name)
        end
    end
    luaunit.assertEquals(files.sorted_keys(tried), files.sorted_keys(rules))
end

-- The same for a real template: its loads from peers made acquiring.
function Sass.test_a_template_that_invalidates_caches_in_its_waits_is_refused()
    local other = helper.tree()
    helper.edit(other .. "/templates/cuda/ptx.cuh", "ld.relaxed.sys.global.v4", "ld.acquire.sys.global.v4")
    local wrong = check(cuda.pack(other, "cuda_ci", "--only '*_w2_*_peer_*_any_seq'"))
    luaunit.assertEquals(#wrong, 2)
    luaunit.assertStrContains(wrong[1], "no_fence_in_polls: in a loop that waits: CCTL.IVALL")
end

-- The build of a pack refuses spills.
function Sass.test_a_spill_is_an_error()
    local flags = files.read("templates/registry.ninja.tmpl"):match("\nnvflags = ([^\n]+)")
    local out, code = helper.sh(("nvcc -cubin -arch=sm_90 %s -DSPILLS -Itemplates -o '%s/x.cubin' "
        .. "tests/codegen/faults.cu"):format(flags, cuda.root))
    luaunit.assertTrue(code ~= 0, out)
    luaunit.assertStrContains(out, "spill")
end

return { Sass = Sass }
