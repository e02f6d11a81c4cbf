-- lua5.4 forward.lua SYMBOLS OUTPUT: assembly (x86-64) that forwards every symbol that is not the shim's own.
-- Signatures are not needed: a forwarder is one jump through a table, whose entries lead to a look-up until it
-- has been made.
local list, output = arg[1], arg[2]
local names = {}
for line in io.lines(list) do
    local name, own = line:match("^([%w_]+) ?(%w*)$")
    if name and own == "" then
        names[#names + 1] = name
    end
end

local out = {}
local function put(format, ...)
    out[#out + 1] = format:format(...)
end

put("    .hidden rfi_nccl_table, rfi_nccl_names, rfi_nccl_look_up")
put("    .text")
for i, name in ipairs(names) do
    put("    .globl %s", name)
    put("    .type %s, @function", name)
    put("%s:", name)
    put("    jmp *rfi_nccl_table+%d(%%rip)", 8 * (i - 1))
    put("    .size %s, . - %s", name, name)
end
for i = 1, #names do
    put("look_up_%d:", i - 1)
    put("    pushq $%d", i - 1)
    put("    jmp look_up")
end

-- All registers that can carry arguments are kept. The stack is aligned at the call: return address, index,
-- seven registers and 136 bytes are a multiple of 16.
local registers = { "rdi", "rsi", "rdx", "rcx", "r8", "r9", "rax" }
put("look_up:")
for _, r in ipairs(registers) do
    put("    pushq %%%s", r)
end
put("    subq $136, %%rsp")
for i = 0, 7 do
    put("    movups %%xmm%d, %d(%%rsp)", i, 16 * i)
end
put("    movl %d(%%rsp), %%edi", 136 + 8 * #registers)
put("    call rfi_nccl_look_up")
put("    movq %%rax, %%r11")
for i = 0, 7 do
    put("    movups %d(%%rsp), %%xmm%d", 16 * i, i)
end
put("    addq $136, %%rsp")
for i = #registers, 1, -1 do
    put("    popq %%%s", registers[i])
end
put("    addq $8, %%rsp")
put("    jmp *%%r11")

put("    .section .rodata")
for i, name in ipairs(names) do
    put("name_%d: .asciz \"%s\"", i - 1, name)
end
put("    .section .data.rel.ro.local, \"aw\"")
put("    .balign 8")
put("    .globl rfi_nccl_names")
put("rfi_nccl_names:")
for i = 1, #names do
    put("    .quad name_%d", i - 1)
end
put("    .data")
put("    .balign 8")
put("    .globl rfi_nccl_table")
put("rfi_nccl_table:")
for i = 1, #names do
    put("    .quad look_up_%d", i - 1)
end
put("    .section .note.GNU-stack, \"\", @progbits")

local f = assert(io.open(output, "w"))
f:write(table.concat(out, "\n"), "\n")
assert(f:close())
