-- The generator's command line; --help says what it does. Run it from the repository's root:
-- everything it names is relative to that.

package.path = "./?.lua;" .. package.path
package.cpath = "generated/bin/?.so;" .. package.cpath

local argparse = require "argparse"
local lfs = require "lfs"

local function fail(message)
    io.stderr:write("gen: ", message, "\n")
    os.exit(1)
end

if not lfs.attributes("gen/main.lua") then
    fail("no gen/main.lua here; run it from the repository's root: lua5.4 gen/main.lua ...")
elseif not lfs.attributes("generated/bin/xxh3.so") then
    fail("generated/bin/xxh3.so is missing; ninja generated/bin/xxh3.so builds it")
end

local files = require "gen.files"
local registry = require "gen.registry"
local render = require "gen.render"
local sku = require "gen.sku"
local tactics = require "gen.tactics"
local variant = require "gen.variant"

local parser = argparse("lua5.4 gen/main.lua",
    "Writes the kernels of a SKU, their registry and their build file to SKU/ in a folder (--out).",
    "Files are written only if they change. Exit status: 0, or 1 with the reason on stderr;\n" ..
    "then nothing was written.")
parser:argument("sku", "the file gen/sku/SKU.lua; --explain takes all of them without it"):args "?"
parser:option("--only", "only variants whose names match (* and ?), written to\n" ..
    "only/SKU/ there, so that they do not pass for the pack"):argname "GLOB"
parser:option("--sample", "only one variant of every kind, the smallest, or of GPU kernels the\n" ..
    "tightest in registers, written to WHICH/SKU/ there: does all compile?"):argname "WHICH"
    :choices { "smallest", "tightest" }
parser:flag("--list", "print names, shards and hashes instead; write nothing")
parser:flag("--why", "print the combinations that cannot be, and why; write nothing")
parser:option("--explain", "say what a variant is, whether it can be, where it is"):argname "NAME"
parser:option("--source", "print the text that a variant's hash is made of, for a look at\n" ..
    "what changed: ... | xxhsum -H2"):argname "NAME"
parser:option("--depfile", "also write what was read, for ninja; FILE is OUTPUT.d")
    :argname "FILE"
parser:option("--out", "the folder"):argname "DIR":default "generated"
parser:option("--sku-dir", "folder of SKU files"):argname "DIR":default "gen/sku"
parser:option("--limit", "most variants"):argname "N":convert(math.tointeger)
    :default(tostring(sku.MOST_VARIANTS))

-- A glob -> predicate on names.
local function matcher(glob)
    local pattern = glob:gsub("[%W]", function(c)
        return c == "*" and ".*" or c == "?" and "." or "%" .. c
    end)
    return function(name)
        return name:find("^" .. pattern .. "$") ~= nil
    end
end

local function load_sku(name, args, read)
    if not name:find("^[a-z][a-z0-9_]*$") then
        fail(("SKU '%s': a name has lower-case letters, digits and _"):format(name))
    end
    local path = ("%s/%s.lua"):format(args.sku_dir, name)
    local text, reason = read(path)
    local parsed
    if text then
        parsed, reason = sku.parse(text, path, name, args.limit)
    end
    return parsed or fail(reason)
end

-- Names of all SKU files, sorted.
local function all_skus(folder)
    local names = {}
    for file in lfs.dir(folder) do
        names[#names + 1] = file:match("^([a-z][a-z0-9_]*)%.lua$")
    end
    table.sort(names)
    return names
end

-- Everything that shaped the output: our own modules, and what was read. As a Makefile rule.
local function depfile_text(output, names)
    names["gen/main.lua"] = true
    for module in pairs(package.loaded) do
        local file = module:match("^gen%.(%w+)$")
        if file then
            names["gen/" .. file .. ".lua"] = true
        end
    end
    return ("%s: %s\n"):format(output, table.concat(files.sorted_keys(names), " \\\n  "))
end

-- What a value stands for, in brackets; "" where it says so itself.
local function meaning(axis, value)
    local row, words = tactics.row[axis.field][value], {}
    if row and row.code:lower() ~= value then
        words[1] = row.code:lower()
    elseif axis.field == "hidden" and value == 0 then
        words[1] = "any"
    end
    words[#words + 1] = row and row.about
    return words[1] and (" (%s)"):format(table.concat(words, ": ")) or ""
end

local function explain(name, args, read)
    local v, reason = variant.parse(name)
    if not v then
        fail(("'%s' is no variant: %s"):format(name, reason))
    end
    io.write(name, "\n")
    for _, axis in ipairs(tactics.axes) do
        if tactics.applies(axis, v.transport) then
            local value = v[axis.field]
            io.write(("  %-10s %s%s\n"):format(axis.field, value, meaning(axis, value)))
        end
    end
    local feasible, why = tactics.feasible(v)
    io.write(feasible and "feasible\n" or "not feasible: " .. why .. "\n")
    for _, sku_name in ipairs(args.sku and { args.sku } or all_skus(args.sku_dir)) do
        local pack = render.pack(load_sku(sku_name, args, read), read)
        local where = "no"
        for _, entry in ipairs(pack.variants) do
            if entry.name == name then
                where = ("yes, shard %s, hash %s"):format(entry.shard, entry.hash)
            end
        end
        io.write(("in SKU %s: %s\n"):format(sku_name, where))
    end
end

local function print_source(name, pack)
    for _, entry in ipairs(pack.variants) do
        if entry.name == name then
            io.write(variant.hashed_text(entry.v, pack.abi, table.unpack(entry.source)))
            return
        end
    end
    fail(("SKU %s has no variant '%s'"):format(pack.sku, name))
end

local function count(n, noun)
    return ("%d %s%s"):format(n, noun, n == 1 and "" or "s")
end

local function list(pack)
    for _, entry in ipairs(pack.variants) do
        io.write(("%-48s %-16s %s\n"):format(entry.name, entry.shard, entry.hash))
    end
end

local function list_refused(chosen)
    for _, entry in ipairs(chosen.refused) do
        io.write(("%-48s %s\n"):format(entry.name, entry.reason))
    end
end

local function keep_only(chosen, glob)
    local matches = matcher(glob)
    for _, which in ipairs { "variants", "refused" } do
        local kept = {}
        for _, entry in ipairs(chosen[which]) do
            if matches(entry.name) then
                kept[#kept + 1] = entry
            end
        end
        chosen[which] = kept
    end
    if #chosen.variants == 0 then
        fail(("SKU %s has no variant like '%s'"):format(chosen.name, glob))
    end
end

local function sample(chosen, which)
    for _, entry in ipairs(chosen.variants) do
        if which == "tightest" and entry.v.transport == "cpu" then
            fail(("SKU %s has %s: what registers a CPU kernel takes is not known")
                :format(chosen.name, entry.name))
        end
    end
    chosen.variants = sku.sample(chosen.variants, which)
end

local function main(args)
    local read, names = files.recorder()
    if args.explain then
        return explain(args.explain, args, read)
    elseif not args.sku then
        parser:error("missing argument 'sku'")
    end
    local chosen = load_sku(args.sku, args, read)
    if args.only then
        keep_only(chosen, args.only)
    end
    if args.sample then
        sample(chosen, args.sample)
    end
    if args.why then
        return list_refused(chosen)
    end
    local pack = render.pack(chosen, read)
    if args.list then
        return list(pack)
    elseif args.source then
        return print_source(args.source, pack)
    end
    local part = args.sample or args.only and "only"
    local out = args.out .. (part and "/" .. part or "")
    local command = "lua5.4 gen/main.lua " .. args.sku
        .. (args.only and (" --only '%s'"):format(args.only) or "")
        .. (args.sample and " --sample " .. args.sample or "")
    local n, reason = registry.write(registry.files(pack, read, out, command), out, args.sku)
    if n and args.depfile then
        local output = args.depfile:gsub("%.d$", "")
        local written
        written, reason = files.write_changed { [args.depfile] = depfile_text(output, names) }
        n = written and n
    end
    if not n then
        fail(reason)
    elseif n > 0 then
        print(("gen: SKU %s: %s in %s, %s changed")
            :format(args.sku, count(pack.kernels, "kernel"), count(#pack.shards, "shard"), count(n, "file")))
    end
    if part then
        print(("gen: to compile them: ninja -f %s/%s/build.ninja"):format(out, args.sku))
    end
end

-- Mistakes in templates are raised as text: no traceback for those.
local ok, problem = pcall(main, parser:parse())
if not ok then
    fail(tostring(problem))
end
