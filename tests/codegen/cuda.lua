-- What the tests of GPU code share: the compiler and the disassembler, where there are any, and small
-- packs compiled in a copy of the tree.

local luaunit = require "luaunit"
local tactics = require "gen.tactics"
local variant = require "gen.variant"
local helper = require "tests.codegen.helper"

local cuda = {}

local function is_there(tool)
    return select(2, helper.sh("command -v " .. tool)) == 0
end

local missing
for _, tool in ipairs { "nvcc", "cuobjdump" } do
    if not missing and not is_there(tool) then
        missing = ("no %s (gen/setup --gpu-tools)"):format(tool)
        print("skipped: " .. missing)
    end
end

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
-- options leave of it. Returns {fatbins (paths), variants (by name of a kernel)}.
function cuda.pack(root, sku, options)
    local out = "generated" .. (options and "/" .. options:gsub("%W+", "_") or "")
    local folder = out .. "/" .. sku
    local arguments = sku .. " " .. (options or "")
    cuda.sh("cd '%s' && lua5.4 gen/main.lua %s --out %s && ninja --quiet -f %s/build.ninja", root, arguments, out,
        folder)
    local pack = { fatbins = {}, variants = {} }
    for name in cuda.sh("ls '%s/%s'/obj/*.fatbin", root, folder):gmatch("%S+") do
        table.insert(pack.fatbins, name)
    end
    for name in helper.gen(root, arguments .. " --list"):gmatch("(%S+) +%S+ +%x+\n") do
        local v = assert(variant.parse(name))
        for rank = 0, tactics.kernels(v) - 1 do
            pack.variants[v.rank == "own" and ("%s_r%d"):format(name, rank) or name] = v
        end
    end
    return pack
end

return cuda
