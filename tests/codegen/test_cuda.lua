-- CUDA packs: what nvcc makes of the templates. Without nvcc on the PATH they are skipped, with a line
-- that says so; no GPU is needed.

local luaunit = require "luaunit"
local files = require "gen.files"
local tactics = require "gen.tactics"
local variant = require "gen.variant"
local helper = require "tests.codegen.helper"

local Cuda = {}

local ARCHIVE = "generated/cuda_ci/librankfold_cuda_ci.a"
local nvcc = select(2, helper.sh("command -v nvcc")) == 0

local pack -- folder of a copy of the tree with the pack built in it

function Cuda.setUp()
    luaunit.skipIf(not nvcc, "no nvcc: CUDA packs are not compiled")
    if not pack then
        pack = helper.tree()
        local out, code = helper.sh(("cd '%s' && lua5.4 gen/main.lua cuda_ci && "
            .. "ninja -f generated/cuda_ci/build.ninja"):format(pack))
        assert(code == 0, out)
    end
end

-- Names of the kernels that the registry's variants stand for, sorted.
local function wanted()
    local names = {}
    for name in helper.gen(pack, "cuda_ci --list"):gmatch("(%S+) +%S+ +%x+\n") do
        local v = assert(variant.parse(name))
        for rank = 0, tactics.kernels(v) - 1 do
            names[#names + 1] = v.rank == "own" and ("%s_r%d"):format(name, rank) or name
        end
    end
    table.sort(names)
    return names
end

local function each_source(visit)
    for name in helper.sh(("ls '%s'/generated/cuda_ci/src/*.cu"):format(pack)):gmatch("%S+") do
        visit(name)
    end
end

-- A cubin is an ELF file: a kernel is a function in it.
function Cuda.test_kernels_in_the_code_are_those_of_the_registry()
    local found = {}
    each_source(function(name)
        local out, code = helper.sh(("cd '%s' && nvcc -cubin -arch=sm_90 -std=c++17 -Itemplates -o x.cubin "
            .. "'%s' && readelf -sW x.cubin"):format(pack, name))
        luaunit.assertEquals(code, 0, out)
        for kernel in out:gmatch("FUNC +GLOBAL +DEFAULT[^\n]* (ar_%S+)\n") do
            found[#found + 1] = kernel
        end
    end)
    table.sort(found)
    luaunit.assertEquals(found, wanted())
end

-- From ptxas -v, function by function. What a call never enters while it is healthy (faults, odd
-- pointers) may have a frame.
function Cuda.test_kernels_have_no_stack_and_stay_within_their_registers()
    local n = 0
    each_source(function(name)
        local out, code = helper.sh(("cd '%s' && nvcc -cubin -arch=sm_90 -std=c++17 -Xptxas -v -Itemplates "
            .. "-o x.cubin '%s'"):format(pack, name))
        luaunit.assertEquals(code, 0, out)
        for kernel, frame, stores, loads, registers in out:gmatch("Function properties for (ar_%S+)\n"
            .. " *(%d+) bytes stack frame, (%d+) bytes spill stores, (%d+) bytes spill loads\n"
            .. "[^\n]*Used (%d+) registers") do
            local v = assert(variant.parse((kernel:gsub("_r%d$", ""))))
            luaunit.assertEquals({ frame, stores, loads }, { "0", "0", "0" }, kernel)
            luaunit.assertTrue(tonumber(registers) * v.threads <= 65536, kernel)
            n = n + 1
        end
    end)
    luaunit.assertEquals(n, #wanted())
end

function Cuda.test_the_pack_links_with_plain_cc_and_holds_its_images()
    local out, code = helper.sh(("cc -std=c11 -Wall -Wextra -Werror -Itemplates -DPACK=rf_pack_cuda_ci "
        .. "-o '%s/images' tests/codegen/images.c '%s/%s' && '%s/images'")
        :format(pack, pack, ARCHIVE, pack))
    luaunit.assertEquals(code, 0, out)
    luaunit.assertStrContains(out, "w2_bf16_peer_sm90 image of ")
    luaunit.assertStrContains(out, "toolchain nvcc ")
    luaunit.assertNil(out:find("WRONG"), out)
end

function Cuda.test_the_same_bytes_in_another_folder()
    local other = helper.tree()
    local out, code = helper.sh(("cd '%s' && umask 077 && lua5.4 gen/main.lua cuda_ci && "
        .. "LC_ALL=C TZ=Asia/Tokyo ninja -j1 -f generated/cuda_ci/build.ninja"):format(other))
    luaunit.assertEquals(code, 0, out)
    luaunit.assertTrue(files.read(pack .. "/" .. ARCHIVE) == files.read(other .. "/" .. ARCHIVE))
end

return { Cuda = Cuda }
