-- Files: reading with a record of what was read, and writing all or nothing.

local lfs = require "lfs"
local path = require "pl.path"

local files = {}

-- The whole file as text, or nil and the reason.
function files.read(name)
    local file, reason = io.open(name, "rb")
    if not file then
        return nil, reason
    end
    local text, failure = file:read("a")
    file:close()
    if not text then
        return nil, ("%s: %s"):format(name, failure)
    end
    return text
end

-- A read function that keeps what it read: each file is read once. Returns it, and the set of names.
function files.recorder()
    local texts, names = {}, {}
    return function(name)
        if not texts[name] then
            local text, reason = files.read(name)
            if not text then
                return nil, reason
            end
            texts[name] = text
            names[name] = true
        end
        return texts[name]
    end, names
end

function files.sorted_keys(t)
    local keys = {}
    for key in pairs(t) do
        keys[#keys + 1] = key
    end
    table.sort(keys)
    return keys
end

local function make_folder(name)
    if name == "" or lfs.attributes(name, "mode") == "directory" then
        return true
    end
    local ok, reason = make_folder(path.dirname(name))
    if ok then
        ok, reason = lfs.mkdir(name)
        if not ok then
            reason = name .. ": " .. reason
        end
    end
    return ok, reason
end

local function write(name, text)
    local file, reason = io.open(name, "wb")
    if not file then
        return nil, reason
    end
    local ok, failure = file:write(text)
    local closed, close_failure = file:close()
    if not (ok and closed) then
        return nil, ("%s: %s"):format(name, failure or close_failure)
    end
    return true
end

-- Writes `texts` (name -> content): those that differ from what is there go to temporary files
-- first and are renamed when all are written, so a full disk changes nothing. Returns the number
-- of files written, or nil and the reason.
function files.write_changed(texts)
    local changed = {}
    for _, name in ipairs(files.sorted_keys(texts)) do
        if files.read(name) ~= texts[name] then
            changed[#changed + 1] = name
        end
    end
    local ok, reason = true, nil
    for _, name in ipairs(changed) do
        ok, reason = make_folder(path.dirname(name))
        if ok then
            ok, reason = write(name .. ".tmp", texts[name])
        end
        if not ok then
            break
        end
    end
    for _, name in ipairs(changed) do
        if ok then
            ok, reason = os.rename(name .. ".tmp", name)
        end
        if not ok then
            os.remove(name .. ".tmp")
        end
    end
    return ok and #changed, reason
end

return files
