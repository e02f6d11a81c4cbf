-- The machine code of the packs, kernel by kernel, against tests/codegen/rules.lua: cuda_ci, and of every
-- other SKU one kernel of each kind.

local lfs = require "lfs"
local luaunit = require "luaunit"
local files = require "gen.files"
local cuda = require "tests.codegen.cuda"
local helper = require "tests.codegen.helper"
local opcodes = require "tests.codegen.opcodes"
local rules = require "tests.codegen.rules"

local Sass = {}

Sass.setUp = cuda.need_tools

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
    for _, shard in ipairs(pack.shards) do
        if cuda.has_cuobjdump then
            local arch = "sm_" .. shard.arch
            luaunit.assertEquals({ is_well_formed(shard.fatbin) }, { arch, arch }, shard.fatbin)
        end
        for _, kernel in ipairs(cuda.kernels(pack.root, shard)) do
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

-- The SKUs that are shipped whole. ptxas takes more registers for Blackwell, from the same source.
for _, sku in ipairs { "h200", "rtxpro6000" } do
    Sass["test_the_tightest_of_every_kind_spill_nothing_of_" .. sku] = function()
        luaunit.assertEquals(check(cuda.pack(cuda.root, sku, "--only '*_bf16_*' --sample tightest")), {})
    end
end

function Sass.test_every_rule_is_broken_by_the_kernel_of_its_name_and_by_no_sound_one()
    cuda.sh("cp tests/codegen/faults.cu '%s/' && cd '%s' && nvcc -fatbin -std=c++17 -Itemplates "
        .. "-gencode arch=compute_90,code=sm_90 -o faults.fatbin faults.cu", cuda.root, cuda.root)
    local faults = { fatbin = cuda.root .. "/faults.fatbin", source = "faults.cu", arch = 90 }
    if cuda.has_cuobjdump then
        luaunit.assertNil(is_well_formed(faults.fatbin)) -- no PTX
    end
    local v = { world = 2, threads = 1024, wire = "nan" }
    local tried = {}
    for _, kernel in ipairs(cuda.kernels(cuda.root, faults)) do
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

local SEEN = {} -- what rules look at
for op in ("LD LDG LDL LDS ST STG STL STS ATOMG RED MEMBAR CCTL ERRBAR ACQBULK BRA CALL RET EXIT"):gmatch("%a+") do
    SEEN[op] = true
end

-- An instruction from either reader as text.
local function essence(i)
    local op = i.op:match("^%u+")
    local width = op and op:find("^[LS][DT]G$") and (i.op:match("%.U?(%d+)") or "32") or ""
    local strong = width ~= "" and i.op:find("STRONG") and "strong" or ""
    local always = not i.guard and not (i.to and i.args:find("P"))
    return ("%x %s %s %s %s %s"):format(i.at, SEEN[op] and op or "", width, strong, i.to or "", always)
end

-- Without cuobjdump, machine code is read byte by byte: both ways see the same.
function Sass.test_bytes_and_listings_say_the_same()
    luaunit.skipIf(not cuda.has_cuobjdump, "no cuobjdump (gen/setup --gpu-tools)")
    for _, arch in ipairs { 75, 80, 90, 120 } do
        local cubin = ("%s/faults.%d.cubin"):format(cuda.root, arch)
        local said = cuda.sh("nvcc -cubin -arch=sm_%d -std=c++17 -Xptxas -v -Itemplates -o '%s' "
            .. "tests/codegen/faults.cu", arch, cubin)
        local bytes = {}
        for _, kernel in ipairs(opcodes.parse(files.read(cubin), said, arch)) do
            bytes[kernel.name] = kernel
        end
        for _, kernel in ipairs(cuda.kernels(cuda.root, { fatbin = cubin })) do
            local other = bytes[kernel.name]
            luaunit.assertEquals({ other.arch, other.registers, other.stack, #other.code },
                { kernel.arch, kernel.registers, kernel.stack, #kernel.code }, kernel.name)
            for k, instruction in ipairs(kernel.code) do
                luaunit.assertEquals(essence(other.code[k]), essence(instruction), kernel.name)
            end
        end
    end
end

-- The same for a real template: its loads from peers made acquiring.
function Sass.test_a_template_that_invalidates_caches_in_its_waits_is_refused()
    local other = helper.tree()
    helper.edit(other .. "/templates/cuda/ptx.cuh", "ld.relaxed.sys.global.v4", "ld.acquire.sys.global.v4")
    local wrong = check(cuda.pack(other, "cuda_ci", "--only '*_w2_*_peer_*_any_seq'"))
    luaunit.assertEquals(#wrong, 2)
    luaunit.assertStrContains(wrong[1], "no_fence_in_polls: in a loop that waits: CCTL")
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
