-- What several test files need: commands, folders, a small tree to run the generator in.

local dir = require "pl.dir"
local path = require "pl.path"
local files = require "gen.files"

local helper = {}

-- Runs a shell line. Returns what it printed (both streams) and its exit code.
function helper.sh(line)
    local pipe = assert(io.popen("{ " .. line .. "\n} 2>&1; echo \" $?\""))
    local text = pipe:read("a")
    pipe:close()
    local out, code = text:match("^(.*) (%d+)\n$")
    return out, tonumber(code)
end

-- $TMPDIR, relative where it is in this tree: what leads here may hold what is special to a shell.
local function temporary()
    local name, here = os.getenv("TMPDIR") or "/tmp", path.currentdir() .. "/"
    return name:sub(1, #here) == here and name:sub(#here + 1) or name
end

-- A fresh empty folder.
local made = 0
function helper.folder()
    made = made + 1
    local name = ("%s/codegen-%d"):format(temporary(), made)
    assert(helper.sh("rm -rf '" .. name .. "'") == "")
    assert(dir.makepath(name))
    return name
end

function helper.write(name, text)
    assert(dir.makepath(path.dirname(name)))
    local file = assert(io.open(name, "wb"))
    assert(file:write(text))
    assert(file:close())
end

function helper.edit(name, from, to)
    local text = assert(files.read(name))
    local first, last = text:find(from, 1, true)
    assert(first, name .. ": nothing to edit: " .. from)
    helper.write(name, text:sub(1, first - 1) .. to .. text:sub(last + 1))
end

-- A copy of the generator and its templates, with the module for XXH3 built.
function helper.tree()
    local root = helper.folder()
    local out, code = helper.sh(("cp -r gen templates '%s/' && mkdir -p '%s/generated/bin' && "
        .. "cp generated/bin/xxh3.so '%s/generated/bin/'"):format(root, root, root))
    assert(code == 0, out)
    return root
end

-- Runs the generator in `root`; `before` is shell text in front of it.
function helper.gen(root, arguments, before)
    return helper.sh(("cd '%s' && %s lua5.4 gen/main.lua %s"):format(root, before or "", arguments))
end

-- The text of a SKU file of one set, with some axes replaced (false: left out).
local function sku_of(set, axes)
    for field, values in pairs(axes or {}) do
        set[field] = values or nil
    end
    local lines = {}
    for _, field in ipairs(files.sorted_keys(set)) do
        lines[#lines + 1] = ("%s = %s"):format(field, set[field])
    end
    return ('return { about = "test", sets = { { %s } } }\n'):format(table.concat(lines, ", "))
end

function helper.sku(axes)
    return sku_of({
        op = '{ "ar" }', world = "{ 1, 2 }", dtype = '{ "f32" }', hidden = "{ 0 }",
        algo = '{ "os" }', transport = '{ "cpu" }', wire = '{ "flag" }', isa = '{ "scalar" }',
        unroll = "{ 1 }", copy = '{ "ca" }',
    }, axes)
end

-- The same for CUDA kernels between peers.
function helper.peer_sku(axes)
    return sku_of({
        op = '{ "ar" }', world = "{ 2 }", dtype = '{ "bf16" }', hidden = "{ 0 }",
        algo = '{ "ts" }', transport = '{ "peer" }', wire = '{ "nan" }', isa = '{ "sm90" }',
        unroll = "{ 1 }", threads = "{ 256 }", rank = '{ "any" }', launch = '{ "seq" }',
    }, axes)
end

-- Relative name -> content of every file below `root`.
function helper.contents(root)
    local out = {}
    for _, name in ipairs(dir.getallfiles(root)) do
        out[name:sub(#root + 2)] = files.read(name)
    end
    return out
end

return helper
