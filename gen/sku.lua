-- SKU files: what to build. gen/sku/<name>.lua returns
--
--     { about = "one line", sets = { { op = { "ar" }, world = { 1, 2 }, ... }, ... } }
--
-- where every set lists values for every axis of gen/tactics.lua that its transport has and stands
-- for all combinations that are feasible. The file is data: it may compute with tables, call the functions
-- of gen/sets.lua by name, and reaches nothing else.

local sets = require "gen.sets"
local tactics = require "gen.tactics"
local variant = require "gen.variant"

local sku = {}

sku.MOST_VARIANTS = 3000 -- and kernels, of which a variant has one, or one per rank
local MOST_COMBINATIONS = 200000 -- that are looked at
local MOST_INSTRUCTIONS = 100000 -- of the file's own code
local MOST_KIB = 64 * 1024

-- Runs the text of a SKU file with nothing but the functions of gen/sets.lua, bounded in time and memory.
-- Returns the table, or nil and the reason.
local function run(text, path)
    local offered = {}
    for name, f in pairs(sets) do
        offered[name] = f
    end
    local chunk, reason = load(text, "=" .. path, "t", offered)
    if not chunk then
        return nil, text:sub(1, 1) == "\27" and path .. ": " .. reason or reason
    end
    local most = collectgarbage("count") + MOST_KIB
    local count = 0
    local bounded = coroutine.create(chunk) -- the hook stops this thread and no other code
    debug.sethook(bounded, function()
        count = count + 1
        if count > MOST_INSTRUCTIONS or collectgarbage("count") > most then
            error(path .. ": does not come to an end: this file is data, not a program", 0)
        end
    end, "", 1)
    local strings = getmetatable("")
    strings.__index = nil -- ("x"):rep(1e9) would not be counted
    local ok, result = coroutine.resume(bounded)
    strings.__index = string
    if not ok then
        return nil, tostring(result)
    end
    if type(result) ~= "table" then
        return nil, ("%s: returns a %s, expected a table"):format(path, type(result))
    end
    return result
end

-- Fields of `t` that are not in `known` (a set), in order: the first one as text, or nil.
local function unknown_field(t, known)
    local found = {}
    for key in pairs(t) do
        if not known[key] then
            found[#found + 1] = tostring(key)
        end
    end
    table.sort(found)
    return found[1]
end

local AXES = {}
for _, axis in ipairs(tactics.axes) do
    AXES[axis.field] = true
end

-- The checks below return nil, or "field: reason".

local function check_values(where, axis, values)
    if type(values) ~= "table" then
        return ("%s: is %s, expected a list, for example { %s }")
            :format(where, values == nil and "missing" or "a " .. type(values),
                axis.values and '"' .. axis.values[1].text .. '"' or axis.min)
    end
    local n = #values
    if n == 0 then
        return where .. ": is empty"
    end
    local seen = {}
    for i = 1, n do
        local known, reason = tactics.admits(axis, values[i])
        if not known then
            return ("%s[%d]: %s"):format(where, i, reason)
        elseif seen[values[i]] then
            return ("%s[%d]: %s is listed twice"):format(where, i, values[i])
        end
        seen[values[i]] = i
    end
    for key in pairs(values) do
        if math.type(key) ~= "integer" or key < 1 or key > n then
            return ("%s: unknown field %s in a list"):format(where, tostring(key))
        end
    end
end

local function check_set(where, set)
    if type(set) ~= "table" then
        return ("%s: is a %s, expected a table"):format(where, type(set))
    end
    local unknown = unknown_field(set, AXES)
    if unknown then
        return ("%s.%s: unknown field"):format(where, unknown)
    end
    local transport
    for _, axis in ipairs(tactics.axes) do
        local complaint
        if tactics.applies(axis, transport) then
            complaint = check_values(where .. "." .. axis.field, axis, set[axis.field])
        elseif set[axis.field] ~= nil then
            complaint = ("%s.%s: transport %s has no such axis"):format(where, axis.field, transport)
        end
        if axis.field == "transport" and not complaint then
            transport = set.transport[1]
            complaint = set.transport[2] and where .. ".transport: a set has one transport"
        end
        if complaint then
            return complaint
        end
    end
    for i, hidden in ipairs(set.hidden) do
        for _, dtype in ipairs(set.dtype) do
            local whole, reason = tactics.whole_rows(hidden, dtype)
            if not whole then
                return ("%s.hidden[%d]: %s"):format(where, i, reason)
            end
        end
    end
end

local function check(spec)
    local unknown = unknown_field(spec, { about = true, sets = true })
    if unknown then
        return unknown .. ": unknown field"
    elseif type(spec.about) ~= "string" or not spec.about:find("^[%w%p ]+$")
        or spec.about:find("*/", 1, true) then
        return "about: expected one line of plain text"
    elseif type(spec.sets) ~= "table" then
        return ("sets: is %s, expected a list of sets")
            :format(spec.sets == nil and "missing" or "a " .. type(spec.sets))
    elseif #spec.sets == 0 then
        return "sets: is empty"
    end
    for key in pairs(spec.sets) do
        if math.type(key) ~= "integer" or key < 1 or key > #spec.sets then
            return ("sets: unknown field %s in a list"):format(tostring(key))
        end
    end
    local combinations = 0
    for i, set in ipairs(spec.sets) do
        local complaint = check_set(("sets[%d]"):format(i), set)
        if complaint then
            return complaint
        end
        local product = 1
        for _, axis in ipairs(tactics.axes) do
            product = math.min(product * #(set[axis.field] or { 1 }), MOST_COMBINATIONS + 1)
        end
        combinations = combinations + product
        if combinations > MOST_COMBINATIONS then
            return ("sets[%d]: more than %d combinations up to here"):format(i, MOST_COMBINATIONS)
        end
    end
end

-- Calls visit(v) with a fresh variant for every combination of a set.
local function each_combination(set, visit)
    local v = {}
    local function descend(depth)
        local axis = tactics.axes[depth]
        if not axis then
            local copy = {}
            for field, value in pairs(v) do
                copy[field] = value
            end
            return visit(copy)
        end
        if not set[axis.field] then
            return descend(depth + 1)
        end
        for _, value in ipairs(set[axis.field]) do
            v[axis.field] = value
            descend(depth + 1)
        end
    end
    descend(1)
end

local function by_name(a, b)
    return a.name < b.name
end

-- Sorted lists of {name, v} that exist and of {name, v, reason} that cannot; or nil and a complaint. A set of
-- which nothing can be is a mistake; some of one cannot be in most SKUs.
local function expand(spec)
    local kept, refused, seen = {}, {}, {}
    local complaint
    for i, set in ipairs(spec.sets) do
        local some, why_none = false, nil
        each_combination(set, function(v)
            local name = variant.name(v)
            local feasible, reason = tactics.feasible(v)
            some = some or feasible
            why_none = why_none or not feasible and ("%s: %s"):format(name, reason)
            if seen[name] then
                complaint = complaint or feasible
                    and ("sets[%d]: %s is in sets[%d] already"):format(i, name, seen[name])
                return
            end
            seen[name] = i
            if feasible then
                kept[#kept + 1] = { name = name, v = v }
            else
                refused[#refused + 1] = { name = name, v = v, reason = reason }
            end
        end)
        complaint = complaint or not some and ("sets[%d]: nothing of it can be: %s"):format(i, why_none)
    end
    if complaint then
        return nil, complaint
    end
    table.sort(kept, by_name)
    table.sort(refused, by_name)
    return kept, refused
end

-- Every op, world, dtype and transport of the SKU needs its net.
local function check_net(kept)
    local holes, order = {}, {}
    for _, entry in ipairs(kept) do
        local v = entry.v
        local key = ("%s, world %d, %s, %s"):format(v.op, v.world, v.dtype, v.transport)
        if holes[key] == nil then
            holes[key] = tactics.net_text(v)
            order[#order + 1] = key
        end
        if tactics.is_net(v) then
            holes[key] = false
        end
    end
    for _, key in ipairs(order) do
        if holes[key] then
            return ("sets: nothing generic (%s) for %s"):format(holes[key], key)
        end
    end
end

-- Reads the text of a SKU file. `limit` is the most variants (nil: MOST_VARIANTS).
-- Returns {name, path, about, variants, refused}, or nil and "file: field: reason".
function sku.parse(text, path, name, limit)
    local spec, reason = run(text, path)
    if not spec then
        return nil, reason
    end
    local complaint = check(spec)
    if complaint then
        return nil, path .. ": " .. complaint
    end
    local kept, refused = expand(spec)
    if not kept then
        return nil, path .. ": " .. refused
    end
    limit = limit or sku.MOST_VARIANTS
    local kernels = 0
    for _, entry in ipairs(kept) do
        kernels = kernels + tactics.kernels(entry.v)
    end
    if #kept > limit then
        return nil, ("%s: sets: %d variants, at most %d"):format(path, #kept, limit)
    elseif kernels > limit then
        return nil, ("%s: sets: %d kernels, at most %d"):format(path, kernels, limit)
    end
    complaint = check_net(kept)
    if complaint then
        return nil, path .. ": " .. complaint
    end
    return { name = name, path = path, about = spec.about, variants = kept, refused = refused }
end

-- Is variant a smaller than b: fewer ranks, but two at least; then by the other numbers of the name?
local function smaller(a, b)
    if (a.world == 1) ~= (b.world == 1) then
        return b.world == 1
    end
    for _, axis in ipairs(tactics.axes) do
        local x, y = a[axis.field], b[axis.field]
        if not axis.values and x ~= y then
            return x < y
        end
    end
    return false
end

-- Is the compiler shorter of registers with a than with b?
local function tighter(a, b)
    local needed_a, most_a = tactics.registers(a)
    local needed_b, most_b = tactics.registers(b)
    return needed_a * most_b > needed_b * most_a
end

sku.samples = { smallest = smaller, tightest = tighter }

-- Of sorted variants, one of every kind, that is of those that differ in numbers only. `which` is a name of
-- sku.samples; tightest is for CUDA.
function sku.sample(variants, which)
    local before, chosen, kept = sku.samples[which], {}, {}
    for _, entry in ipairs(variants) do
        local kind = tactics.kind(entry.v)
        if not chosen[kind] or before(entry.v, chosen[kind].v) then
            chosen[kind] = entry
        end
    end
    for _, entry in ipairs(variants) do
        if chosen[tactics.kind(entry.v)] == entry then
            kept[#kept + 1] = entry
        end
    end
    return kept
end

return sku
