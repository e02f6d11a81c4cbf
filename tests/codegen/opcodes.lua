-- Machine code of CUDA kernels read from the bytes of a cubin, for machines that have nvcc but no
-- disassembler: what tests/codegen/sass.lua makes of a listing, as far as tests/codegen/rules.lua looks at
-- it. Other instructions have no op. NVIDIA documents none of this: test_sass.lua compares it with cuobjdump.

local opcodes = {}

-- By the low twelve bits of an instruction, which has sixteen bytes since sm_70.
local OPS = {
    [0x381] = "LDG", [0x386] = "STG", -- sm_75, where no uniform register is part of the address
    [0x980] = "LD", [0x981] = "LDG", [0x983] = "LDL", [0x984] = "LDS",
    [0x985] = "ST", [0x986] = "STG", [0x387] = "STL", [0x388] = "STS",
    [0x9a8] = "ATOMG", [0x3a9] = "ATOMG", [0x98e] = "RED",
    [0x992] = "MEMBAR", [0x98f] = "CCTL", [0x9ab] = "ERRBAR", [0x82e] = "ACQBULK",
    [0x947] = "BRA", [0x944] = "CALL", [0x950] = "RET", [0x94d] = "EXIT",
}
local WIDTH = { [4] = ".E", [5] = ".E.64", [6] = ".E.128" } -- of LDG and STG
local ALWAYS = 7 -- the predicate register PT

-- Where a branch goes, in bytes from the next instruction.
local function offset(low, high, arch)
    if arch < 90 then
        return low >> 32 | (high & 0x3ffff) << 32, 50
    end
    return ((low >> 16 & 0xff) | low >> 34 << 8 | (high & 0x3ffff) << 38) << 2, 58
end

local function decode(text, arch)
    local code = {}
    for at = 0, #text - 16, 16 do
        local low, high = string.unpack("<I8I8", text, at + 1)
        local i = { at = at, op = OPS[low & 0xfff] or "", args = "",
            guard = low >> 12 & 15 ~= ALWAYS and "P" or nil }
        if i.op == "LDG" or i.op == "STG" then
            local order = high >> 13 & 7
            i.op = i.op .. (WIDTH[high >> 9 & 7] or ".E.U16") .. ((order == 2 or order == 3) and ".STRONG.SYS" or "")
        elseif i.op == "BRA" then
            local bytes, bits = offset(low, high, arch)
            if bytes >> (bits - 1) & 1 == 1 then
                bytes = bytes - (1 << bits)
            end
            i.to = (at + 16 + bytes) // 16 + 1
            i.args = high >> 23 & 15 == ALWAYS and "" or "P"
        end
        code[#code + 1] = i
    end
    return code
end

-- A cubin's bytes and what ptxas -v said of it -> a list of kernels.
function opcodes.parse(cubin, said, arch)
    local headers, size, n, names = string.unpack("<I8", cubin, 0x29), string.unpack("<I2I2I2", cubin, 0x3b)
    local function section(i)
        local name, _, _, _, from, bytes = string.unpack("<I4I4I8I8I8I8", cubin, headers + i * size + 1)
        return name, from, bytes
    end
    local _, texts = section(names)
    local kernels = {}
    for i = 0, n - 1 do
        local name, from, bytes = section(i)
        local kernel = string.unpack("z", cubin, texts + name + 1):match("^%.text%.(.+)$")
        if kernel then
            local stack, registers = said:match("Function properties for " .. kernel
                .. "\n *(%d+) bytes stack frame[^\n]*\n[^\n]*Used (%d+) registers")
            kernels[#kernels + 1] = { name = kernel, arch = "sm_" .. arch, stack = math.tointeger(stack),
                registers = math.tointeger(registers), code = decode(cubin:sub(from + 1, from + bytes), arch) }
        end
    end
    return kernels
end

return opcodes
