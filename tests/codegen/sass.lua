-- Machine code of CUDA kernels, as cuobjdump lists it: which instructions a healthy call runs (its body:
-- what is reached without calls, since faults and odd pointers are functions of their own), and which of
-- them wait in a loop for others.

local sass = {}

-- `/*0100*/  @!P0 BRA P1, 0x3b0 ;`
local LINE = "^%s+/%*(%x+)%*/%s+([^;]*);"
local GUARD, INSTRUCTION = "^@(!?U?P[%dT]+)%s+(.*)$", "^([A-Z][%w_.]*)%s*(.*)$"

-- What cuobjdump -sass and -res-usage print -> a list of {name, arch, registers, stack, code}; code is a
-- list of {at, guard (or nil), op, args, to}, `to` being the index of a branch's target.
function sass.parse(listing, usage)
    local kernels, arch, kernel = {}, nil, nil
    for line in listing:gmatch("[^\n]+") do
        arch = line:match("^%s*code for (sm_%d+)") or arch
        local name = line:match("^%s*Function : (%S+)")
        if name then
            kernel = { name = name, arch = arch, code = {}, index = {} }
            kernels[#kernels + 1] = kernel
        end
        local at, text = line:match(LINE)
        if at then
            local guard, rest = text:match(GUARD)
            local op, args = (rest or text):match(INSTRUCTION)
            table.insert(kernel.code, { at = tonumber(at, 16), guard = guard, op = op, args = args })
            kernel.index[tonumber(at, 16)] = #kernel.code
        end
    end
    for _, k in ipairs(kernels) do
        for _, i in ipairs(k.code) do
            if i.op:find("^BRA") then
                i.to = assert(k.index[tonumber(i.args:match("0x(%x+)%s*$"), 16)], k.name .. ": " .. i.args)
            end
            assert(not i.op:find("^BRX") and not i.op:find("^JM"), k.name .. ": cannot follow " .. i.op)
        end
        k.registers, k.stack = usage:match("Function " .. k.name .. ":\n *REG:(%d+) STACK:(%d+)")
        k.registers, k.stack = math.tointeger(k.registers), math.tointeger(k.stack)
    end
    return kernels
end

-- Indices that may follow i.
local function next_of(code, i)
    local at = code[i]
    local always = not at.guard and not at.args:find("^!?U?P")
    if at.to then
        return at.to, not always and i + 1 or nil
    elseif always and (at.op == "EXIT" or at.op:find("^RET")) then
        return nil
    end
    return i + 1
end

-- Set of the indices of a kernel's body.
function sass.body(code)
    local seen, open = {}, { 1 }
    while #open > 0 do
        local i = table.remove(open)
        if not seen[i] and code[i] then
            seen[i] = true
            local a, b = next_of(code, i)
            open[#open + 1] = a
            open[#open + 1] = b
        end
    end
    return seen
end

-- Loops of the body as sets of indices: whatever leads to a branch back without passing its target.
local function loops(code, body)
    local before = {}
    for i in pairs(body) do
        for _, j in ipairs { next_of(code, i) } do
            before[j] = before[j] or {}
            table.insert(before[j], i)
        end
    end
    local out = {}
    for i in pairs(body) do
        local head = code[i].to
        if head and head <= i then
            local loop, open = { [head] = true }, { i }
            while #open > 0 do
                local j = table.remove(open)
                if not loop[j] then
                    loop[j] = true
                    table.move(before[j] or {}, 1, #(before[j] or {}), #open + 1, open)
                end
            end
            out[#out + 1] = loop
        end
    end
    return out
end

local function size(set)
    local n = 0
    for _ in pairs(set) do
        n = n + 1
    end
    return n
end

-- The loops that wait, as lists of instructions: the innermost ones around loads of what others store, if
-- they store nothing themselves.
function sass.polls(code)
    local body = sass.body(code)
    local all, found, out = loops(code, body), {}, {}
    table.sort(all, function(a, b) return size(a) < size(b) end)
    for i in pairs(body) do
        if code[i].op:find("^LDG?%..*STRONG%.SYS") then
            for _, loop in ipairs(all) do
                if loop[i] then
                    found[loop] = true
                    break
                end
            end
        end
    end
    for loop in pairs(found) do
        local instructions, stores = {}, false
        for i in pairs(loop) do
            instructions[#instructions + 1] = code[i]
            stores = stores or code[i].op:find("^STG?%.") ~= nil
        end
        table.sort(instructions, function(a, b) return a.at < b.at end)
        out[#out + 1] = not stores and instructions or nil
    end
    return out
end

return sass
