-- The identity of a variant: its name, and the hash of its content.

local tactics = require "gen.tactics"
local xxh3 = require "xxh3"

local variant = {}

-- The name says every parameter: ar_w2_bf16_h0_os_cpu_flag_avx512_u4_nt. The same text is the
-- kernel's symbol, the database's key for people, and what logs print.
function variant.name(v)
    local tokens = {}
    for _, axis in ipairs(tactics.axes) do
        if tactics.applies(axis, v.transport) then
            tokens[#tokens + 1] = (axis.prefix or "") .. v[axis.field]
        end
    end
    return table.concat(tokens, "_")
end

-- One token of a name -> the value, or nil.
local function parse_token(axis, token)
    if axis.values then
        return tactics.row[axis.field][token] and token
    end
    local digits = token:match("^" .. axis.prefix .. "(%d+)$")
    local canonical = digits and #digits <= 9 and (digits == "0" or digits:sub(1, 1) ~= "0")
    local value = canonical and math.tointeger(tonumber(digits))
    return value and tactics.admits(axis, value) and value or nil
end

-- The inverse of variant.name: parameters, or nil and the reason. Says nothing about feasibility.
function variant.parse(name)
    local v, at, last = {}, 1, nil
    for _, axis in ipairs(tactics.axes) do
        if tactics.applies(axis, v.transport) then
            local token = name:match("^[^_]*", at) or ""
            v[axis.field] = parse_token(axis, token)
            if v[axis.field] == nil then
                local expected = tactics.expected(axis)
                if axis.prefix then
                    expected = ("%s and %s"):format(axis.prefix, expected)
                end
                return nil, ('%s is "%s", expected %s'):format(axis.field, token, expected)
            end
            at = at + #token + 1
            last = axis
        end
    end
    if at <= #name + 1 then
        return nil, ('"%s" follows the last field, %s'):format(name:sub(at - 1), last.field)
    end
    return v
end

-- The parameters as text, one line each, in the order of the name.
function variant.canonical(v)
    local lines = {}
    for _, axis in ipairs(tactics.axes) do
        if tactics.applies(axis, v.transport) then
            lines[#lines + 1] = axis.field .. "=" .. v[axis.field] .. "\n"
        end
    end
    return table.concat(lines)
end

-- XXH3-128 of parameters, ABI and normalised source (which may come in pieces): 32 hex digits.
function variant.hash(v, abi, ...)
    return xxh3.hash128(variant.canonical(v), "abi=", tostring(abi), "\n", ...)
end

-- The text that variant.hash hashes.
function variant.hashed_text(v, abi, ...)
    return table.concat { variant.canonical(v), "abi=", tostring(abi), "\n", ... }
end

return variant
