-- C source reduced to what the compiler sees of it: comments gone, white space normalised, our own
-- headers inlined. Variants are identified by this text, so that editing a comment or running
-- clang-format changes no hash, and changing code does.

local source = {}

-- Where an #include "..." of a template is looked up.
source.root = "templates/"

-- This header is not inlined: it stands in every hash as its number RF_ABI.
local ABI_HEADER = "abi.h"

local LITERAL = "\1" -- stands for a string or character literal while white space is worked on

-- Comments become a space, literals become LITERAL and are returned in order.
local function split_literals(text)
    local pieces, literals, at = {}, {}, 1
    while true do
        local found = text:find("[/\"']", at)
        if not found then
            break
        end
        pieces[#pieces + 1] = text:sub(at, found - 1)
        local opening = text:sub(found, found)
        if opening == "/" then
            local kind = text:sub(found, found + 1)
            if kind == "/*" then
                local _, last = text:find("*/", found + 2, true)
                pieces[#pieces + 1] = " "
                at = (last or #text) + 1
            elseif kind == "//" then
                at = text:find("\n", found, true) or #text + 1
            else
                pieces[#pieces + 1] = "/"
                at = found + 1
            end
        else
            local last = found + 1
            while true do -- to the closing quote; a line's end closes what should not be open
                last = text:find("[\\\n" .. opening .. "]", last)
                if not last or text:sub(last, last) ~= "\\" then
                    break
                end
                last = last + 2
            end
            last = last or #text
            if text:sub(last, last) == "\n" then
                last = last - 1
            end
            literals[#literals + 1] = text:sub(found, last)
            pieces[#pieces + 1] = LITERAL
            at = last + 1
        end
    end
    pieces[#pieces + 1] = text:sub(at)
    return table.concat(pieces), literals
end

-- White space between two tokens stays, as one space, only where it separates: two words, or two
-- operators.
local function squeeze(code)
    return (code:gsub("%s+", " ")
        :gsub(" ?([%(%){}%[%],;]) ?", "%1")
        :gsub("([%w_\1]) ([^%w_\1])", "%1%2")
        :gsub("([^%w_\1]) ([%w_\1])", "%1%2")
        :gsub("^ ", "")
        :gsub(" $", ""))
end

-- C text -> its normal form. Preprocessor lines stay lines and keep single spaces (they may
-- matter there: `#define F (x)`); everything between two of them becomes one line.
function source.normalise(text)
    assert(not text:find(LITERAL, 1, true), "control characters in C source")
    local spliced = text:gsub("\r\n", "\n"):gsub("\\\n", "")
    local bare, literals = split_literals(spliced)
    local lines, code = {}, {}
    local function flush()
        local line = squeeze(table.concat(code, " "))
        code = {}
        if line ~= "" then
            lines[#lines + 1] = line .. "\n"
        end
    end
    for line in bare:gmatch("[^\n]+") do
        if line:find("^%s*#") then
            flush()
            lines[#lines + 1] = line:gsub("%s+", " "):gsub("^ ?# ?", "#"):gsub(" $", "") .. "\n"
        else
            code[#code + 1] = line
        end
    end
    flush()
    local next_literal = 0
    return (table.concat(lines):gsub(LITERAL, function()
        next_literal = next_literal + 1
        return literals[next_literal]
    end))
end

-- A reader of normalised, inlined source. read(path) -> text, or nil and the reason.
function source.inliner(read)
    local cache = {}

    local function header(path, from)
        if not cache[path] then
            local text, reason = read(source.root .. path)
            if not text then
                error(("%s includes \"%s\": %s"):format(from, path, reason), 0)
            end
            cache[path] = source.normalise(text)
        end
        return cache[path]
    end

    local function expand(normal, from, seen)
        return (normal:gsub("#include \"([^\"\n]+)\"\n", function(path)
            if path == ABI_HEADER or seen[path] then
                return nil -- stays as it is
            end
            seen[path] = true
            return expand(header(path, from), source.root .. path, seen)
        end))
    end

    -- C text -> normal form with every template header that it reaches in place of the first
    -- #include that names it. `from` names the text in errors.
    return function(text, from)
        return expand(source.normalise(text), from, {})
    end
end

return source
