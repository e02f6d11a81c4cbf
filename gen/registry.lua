-- A rendered pack to the files of generated/<sku>/: shards, registry, build file, manifest.

local files = require "gen.files"
local render = require "gen.render"
local tactics = require "gen.tactics"

local registry = {}

-- The same sources compiled in several ways. The first one is the product; sanitizers see nothing
-- of CUDA code, so packs of that have no others.
local FLAVOURS = {
    { about = "the pack (default)", folder = "%s/%s", objects = "obj", flags = "" },
    { about = "the pack under AddressSanitizer and UBSan", folder = "%s/asan", objects = "asan",
        flags = "-O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer" },
    { about = "the pack under ThreadSanitizer", folder = "%s/tsan", objects = "tsan",
        flags = "-O1 -fsanitize=thread" },
}

-- Eight bytes of a hash as C, from byte `first`.
local function hash_bytes(hash, first)
    local bytes = {}
    for i = first, first + 7 do
        bytes[#bytes + 1] = "0x" .. hash:sub(2 * i - 1, 2 * i)
    end
    return table.concat(bytes, ", ") .. (first == 1 and "," or "")
end

-- The axes of a variant as designated initialisers, in the order of the name.
local function fields(v)
    local out = {}
    for _, axis in ipairs(tactics.axes) do
        local value = v[axis.field]
        local row = axis.values and tactics.row[axis.field][value]
        if value ~= nil then
            local number = axis.c == "flags" and tactics.flags(v) or row and row.number or value
            out[#out + 1] = (".%s = %d,"):format(axis.c or axis.field, number)
        end
    end
    return table.concat(out, " ")
end

-- Architectures as the backends name them, in the order of the list of instruction sets.
local function architectures(pack)
    local used = {}
    for _, shard in ipairs(pack.shards) do
        used[shard.isa] = tactics.row.transport[shard.transport].arch
    end
    local out = {}
    for _, row in ipairs(tactics.axis.isa.values) do
        if used[row.text] then
            out[#out + 1] = ('"%s/%s"'):format(used[row.text], row.text)
        end
    end
    return table.concat(out, ", ")
end

-- name -> text of everything that belongs into out/<sku>/. `command` is what the files say about
-- their origin.
function registry.files(pack, read, out, command)
    local templates = {}
    local function text(name, more)
        templates[name] = templates[name] or render.template(read, "templates/" .. name)
        more.command, more.sku, more.out = command, pack.sku, out
        return templates[name](more)
    end
    local folder = ("%s/%s/"):format(out, pack.sku)
    local texts, images = {}, {}
    for _, shard in ipairs(pack.shards) do
        local row = tactics.row.transport[shard.transport]
        shard.image = row.source == "cu" and ("%sobj/%s.fatbin"):format(folder, shard.name)
        local more = { shard = shard, hash_bytes = hash_bytes, fields = fields, templates = row.family,
            source = row.source, image = shard.image }
        if shard.image then
            texts[("%ssrc/%s.cu"):format(folder, shard.name)] = text("registry_kernels.cu.tmpl", more)
            images[#images + 1] = shard
        end
        shard.text = text("registry_shard.c.tmpl", more)
        texts[("%ssrc/%s.c"):format(folder, shard.name)] = shard.text
    end
    local flavours = {}
    for i = 1, #images == 0 and #FLAVOURS or 1 do
        local flavour = FLAVOURS[i]
        flavours[i] = {
            about = flavour.about, flags = flavour.flags,
            archive = ("%s/librankfold_%s.a"):format(flavour.folder:format(out, pack.sku), pack.sku),
            objects = folder .. flavour.objects,
        }
    end
    texts[folder .. "src/registry.c"] = text("registry.c.tmpl",
        { abi = pack.abi, about = pack.about, shards = pack.shards, variants = pack.variants })
    texts[folder .. "build.ninja"] = text("registry.ninja.tmpl",
        { flavours = flavours, shards = pack.shards, images = images })
    texts[folder .. "manifest.json"] = text("registry.json.tmpl",
        { abi = pack.abi, about = pack.about, shards = pack.shards, variants = pack.variants,
            kernels = pack.kernels, arch = architectures(pack) })
    return texts
end

-- Writes the files and removes sources that an earlier run wrote and this one did not; files.txt
-- remembers what is ours. Returns the number of files written or removed, or nil and the reason.
function registry.write(texts, out, sku)
    local folder = ("%s/%s/"):format(out, sku)
    local list = folder .. "files.txt"
    local before = files.read(list) or ""
    texts[list] = table.concat(files.sorted_keys(texts), "\n"):gsub("[^\n]+", function(name)
        return name:sub(#folder + 1)
    end) .. "\n"
    local n, reason = files.write_changed(texts)
    if not n then
        return nil, reason
    end
    for name in before:gmatch("[^\n]+") do
        if name:find("^src/[%w_]+%.cu?$") and not texts[folder .. name] then
            os.remove(folder .. name)
            n = n + 1
        end
    end
    return n
end

return registry
