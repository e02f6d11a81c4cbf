-- What compiled kernels have to be like. A rule looks at one kernel, {name, registers, stack, code...} of
-- tests/codegen/sass.lua, and its variant, and returns what is wrong, or nil. tests/codegen/faults.cu has a
-- kernel that breaks each, named after it.

local sass = require "tests.codegen.sass"

local rules = {}

-- Instructions of the body whose op matches a pattern.
local function of_body(kernel, pattern)
    local found = {}
    for i in pairs(sass.body(kernel.code)) do
        if kernel.code[i].op:find(pattern) then
            found[#found + 1] = kernel.code[i]
        end
    end
    table.sort(found, function(a, b) return a.at < b.at end)
    return found
end

local function text(instructions)
    local ops = {}
    for i, instruction in ipairs(instructions) do
        ops[i] = instruction.op
    end
    return table.concat(ops, ", ")
end

local FENCES = { "^MEMBAR", "^CCTL", "^ERRBAR" } -- in SASS a system fence is all of them

-- All threads of a block have to fit.
function rules.registers(kernel, v)
    local needed = (kernel.registers + 7) // 8 * 8 * v.threads
    return needed > 65536 and ("%d registers of %d threads are more than 65536"):format(kernel.registers, v.threads)
end

-- Neither spills nor arrays that are indexed, in no function of it.
function rules.no_local_memory(kernel)
    for _, instruction in ipairs(kernel.code) do
        if instruction.op:find("^LDL") or instruction.op:find("^STL") then
            return "touches local memory: " .. instruction.op
        end
    end
    return kernel.stack > 0 and ("has a frame of %d bytes"):format(kernel.stack)
end

-- Payload moves 16 bytes at a time. What is narrower is a word that ranks or host share, and said to be
-- strong; or of wire tag, whose vectors take 12 or 14 bytes of the tensor. What is generic was reached through a
-- pointer to the params.
function rules.wide_accesses(kernel, v)
    for _, instruction in ipairs(of_body(kernel, "^[LS][DT]")) do
        local op = instruction.op
        local device = op:find("^[LS][DT]G%.")
        local fewer = v.wire == "tag" and (op:find("^...%.E$") or op:find("^...%.E%.SYS$")
            or v.dtype ~= "f32" and op:find("^...%.E%.U16"))
        if not device and not op:find("^LDC") then
            return "touches other memory than the devices': " .. op
        elseif device and not op:find("%.128") and not op:find("%.STRONG") and not fewer then
            return "moves less than 16 bytes: " .. op
        end
    end
end

-- A wire that validates itself needs one word besides the payload, the next epoch.
function rules.few_words(kernel, v)
    local narrow = {}
    for _, instruction in ipairs(of_body(kernel, "^[LS][DT]G.*STRONG")) do
        if not instruction.op:find("%.128") then
            narrow[#narrow + 1] = instruction
        end
    end
    return v.wire ~= "flag" and #narrow > 1 and "moves words: " .. text(narrow)
end

-- Whoever has peers waits for them, in a loop.
function rules.polls(kernel, v)
    return v.world > 1 and #sass.polls(kernel.code) == 0 and "waits for nobody"
end

-- An L1 invalidate or a fence in each turn of a wait would slow down everybody else.
function rules.no_fence_in_polls(kernel)
    for _, poll in ipairs(sass.polls(kernel.code)) do
        for _, instruction in ipairs(poll) do
            for _, fence in ipairs(FENCES) do
                if instruction.op:find(fence) then
                    return "in a loop that waits: " .. instruction.op
                end
            end
        end
    end
end

-- Payload that validates itself needs no fence, flags need one to announce. Before sm_90, which brought a
-- cheaper one, they take another behind the wait.
function rules.one_fence(kernel, v)
    local most = v.wire ~= "flag" and 0 or tonumber(kernel.arch:sub(4)) >= 90 and 1 or 2
    local fences = of_body(kernel, "^MEMBAR")
    return #fences > most and ("%d fences, at most %d: %s"):format(#fences, most, text(fences))
end

-- With dependent launch the wait comes first on every path: before any branch and any access.
function rules.waits_first(kernel, v)
    local waits = of_body(kernel, "^ACQBULK")
    if #waits ~= (v.launch == "dep" and 1 or 0) then
        return ("waits %d times for the kernel before it"):format(#waits)
    end
    for _, instruction in ipairs(waits[1] and kernel.code or {}) do
        if instruction == waits[1] then
            return nil
        elseif instruction.op:find("^BRA") or instruction.op:find("^[LS][DT]G") or instruction.op:find("^ATOM") then
            return ("%s before the wait"):format(instruction.op)
        end
    end
end

return rules
