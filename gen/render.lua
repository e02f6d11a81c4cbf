-- Variants to C or CUDA text: kernels from templates, gathered into shards.

local template = require "pl.template"
local source = require "gen.source"
local tactics = require "gen.tactics"
local variant = require "gen.variant"

local render = {}

render.MOST_KERNELS = 50 -- in one shard: a file that compiles in seconds

-- What templates may use besides the names that they are given. Any other name is an error.
local LIBRARY = { ipairs = ipairs, table = table, string = string, math = math }

-- A template file -> function(names) that returns its text. Raises text on errors.
function render.template(read, name)
    local text, reason = read(name)
    if not text then
        error(reason, 0)
    end
    local compiled, failure = template.compile(text, { escape = "@", chunk_name = "=" .. name })
    if not compiled then
        error(name .. ": " .. failure, 0)
    end
    return function(names)
        setmetatable(names, { __index = function(_, key)
            return LIBRARY[key] or error(("unknown name '%s'"):format(key), 0)
        end })
        local out, problem = compiled:render(names)
        if not out then
            error(("%s: %s"):format(name, (problem:gsub("\nstack traceback.*", ""))), 0)
        end
        return out
    end
end

-- RF_ABI of templates/abi.h.
function render.abi(read)
    local name = source.root .. "abi.h"
    local text, reason = read(name)
    if not text then
        error(reason, 0)
    end
    local number = text:match("\n#define%s+RF_ABI%s+(%d+)")
    return math.tointeger(tonumber(number)) or error(name .. ": no RF_ABI in it", 0)
end

-- Name of the shard group of a variant.
local function group_of(v)
    return ("w%d_%s_%s_%s"):format(v.world, v.dtype, v.transport, v.isa)
end

-- Sorted entries -> shards {name, world, dtype, isa, transport, entries}, sorted by name; a group of
-- more than MOST_KERNELS is cut into equal parts.
function render.shards(entries)
    local groups, names = {}, {}
    for _, entry in ipairs(entries) do
        local name = group_of(entry.v)
        if not groups[name] then
            groups[name] = {}
            names[#names + 1] = name
        end
        table.insert(groups[name], entry)
    end
    local shards = {}
    for _, name in ipairs(names) do
        local group = groups[name]
        local parts = math.ceil(#group / render.MOST_KERNELS)
        for part = 1, parts do
            local first = (part - 1) * #group // parts + 1
            local last = part * #group // parts
            local v = group[1].v
            shards[#shards + 1] = {
                name = parts == 1 and name or ("%s_%02d"):format(name, part),
                world = v.world, dtype = v.dtype, isa = v.isa, transport = v.transport,
                entries = table.move(group, first, last, 1, {}),
            }
        end
    end
    table.sort(shards, function(a, b) return a.name < b.name end)
    return shards
end

-- What the kernels of these entries are made of: a set of "wire" and "wire algo".
local function uses(entries)
    local set = {}
    for _, entry in ipairs(entries) do
        set[entry.v.wire] = true
        set[entry.v.wire .. " " .. entry.v.algo] = true
    end
    return set
end

-- The templates of one transport: what stands above the kernels of some entries of a shard, and a
-- kernel.
local function family(read, inline, transport)
    local row = tactics.row.transport[transport]
    local folder = ("templates/%s/"):format(row.family)
    local above = ("%sshard.%s.tmpl"):format(folder, row.source)
    local prologue = render.template(read, above)
    local known = {} -- by text
    local function text_of(shard, entries)
        return prologue {
            dtype = tactics.row.dtype[shard.dtype],
            isa = tactics.row.isa[shard.isa],
            transport = shard.transport,
            uses = uses(entries),
        }
    end
    return {
        kernel = render.template(read, ("%skernel.%s.tmpl"):format(folder, row.source)),
        prologue = function(shard)
            return text_of(shard, shard.entries)
        end,
        -- What of it one variant sees, so that an edit of one protocol leaves the hashes of others.
        source = function(shard, entry)
            local text = text_of(shard, { entry })
            known[text] = known[text] or inline(text, above)
            return known[text]
        end,
    }
end

-- A SKU as sku.parse returns it -> its pack: {sku, about, abi, shards, kernels}, each shard with its
-- prologue, each entry with its kernel and hash.
function render.pack(sku, read)
    local inline = source.inliner(read)
    local abi = render.abi(read)
    local shards = render.shards(sku.variants)
    local families, kernels = {}, 0
    for _, shard in ipairs(shards) do
        local templates = families[shard.transport] or family(read, inline, shard.transport)
        families[shard.transport] = templates
        shard.prologue = templates.prologue(shard)
        shard.kernels = 0
        for _, entry in ipairs(shard.entries) do
            local names = { name = entry.name }
            for field, value in pairs(entry.v) do
                names[field] = value
            end
            entry.kernel = templates.kernel(names)
            entry.shard = shard.name
            entry.source = { templates.source(shard, entry), source.normalise(entry.kernel) }
            entry.hash = variant.hash(entry.v, abi, entry.source[1], entry.source[2])
            shard.kernels = shard.kernels + tactics.kernels(entry.v)
        end
        kernels = kernels + shard.kernels
    end
    return { sku = sku.name, about = sku.about, abi = abi, shards = shards, kernels = kernels,
        variants = sku.variants }
end

return render
