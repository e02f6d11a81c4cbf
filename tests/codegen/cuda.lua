-- What the tests of GPU code share: the compiler and the disassembler, where there are any, and small
-- packs compiled in a copy of the tree.

local luaunit = require "luaunit"
local files = require "gen.files"
local tactics = require "gen.tactics"
local variant = require "gen.variant"
local helper = require "tests.codegen.helper"
local opcodes = require "tests.codegen.opcodes"
local sass = require "tests.codegen.sass"

local cuda = {}

local function is_there(tool)
    return select(2, helper.sh("command -v " .. tool)) == 0
end

local missing = not is_there("nvcc") and "no nvcc (gen/setup --gpu-tools)"
if missing then
    print("skipped: " .. missing)
end

-- Else machine code is read byte by byte.
cuda.has_cuobjdump = is_there("cuobjdump")

-- First line of every setUp. From then on, cuda.root is a copy of the tree.
function cuda.need_tools()
    luaunit.skipIf(missing, missing)
    cuda.root = cuda.root or helper.tree()
end

-- Runs a shell line that has to succeed; returns what it printed.
function cuda.sh(line, ...)
    local out, code = helper.sh(line:format(...))
    luaunit.assertEquals(code, 0, out)
    return out
end

-- Generates and compiles a pack in the tree `root`, as far as it is not there: the whole SKU, or what
-- options leave of it. Returns {root, shards ({fatbin, source, arch}), variants (by name of a kernel)}.
function cuda.pack(root, sku, options)
    local arguments = sku .. " " .. (options or "")
    local said = cuda.sh("cd '%s' && lua5.4 gen/main.lua %s", root, arguments)
    local folder = said:match("ninja %-f (%S+)/build.ninja\n") or "generated/" .. sku
    cuda.sh("cd '%s' && ninja --quiet -f %s/build.ninja", root, folder)
    local pack = { root = root, shards = {}, variants = {} }
    for name in cuda.sh("ls '%s/%s/obj'", root, folder):gmatch("(%S+)%.fatbin") do
        table.insert(pack.shards, { fatbin = ("%s/%s/obj/%s.fatbin"):format(root, folder, name),
            source = ("%s/src/%s.cu"):format(folder, name), arch = tonumber(name:match("_sm(%d+)")) })
    end
    for name in helper.gen(root, arguments .. " --list"):gmatch("(%S+) +%S+ +%x+\n") do
        local v = assert(variant.parse(name))
        for rank = 0, tactics.kernels(v) - 1 do
            pack.variants[v.rank == "own" and ("%s_r%d"):format(name, rank) or name] = v
        end
    end
    return pack
end

-- Kernels in the code of a shard, as sass.parse returns them.
function cuda.kernels(root, shard)
    if cuda.has_cuobjdump then
        return sass.parse(cuda.sh("cuobjdump -sass '%s'", shard.fatbin),
            cuda.sh("cuobjdump -res-usage '%s'", shard.fatbin))
    end
    local said = cuda.sh("cd '%s' && nvcc -cubin -arch=sm_%d -std=c++17 -Xptxas -v -Itemplates -o x.cubin %s",
        root, shard.arch, shard.source)
    return opcodes.parse(files.read(root .. "/x.cubin"), said, shard.arch)
end

return cuda
