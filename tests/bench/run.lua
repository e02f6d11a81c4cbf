-- Benchmarks with ratios, against Debian's MPIs, in interleaved rounds: lua5.4 tests/bench/run.lua
-- (`ninja bench` builds what it needs). Prints tables; exits 1 when a program fails or a sum is
-- wrong, not when a target is missed: the machine may be busy.

local OUT = "generated/bench/"
local ROUNDS = 5
local BUDGET_MS = 40 -- of one size in one round

local SIZES = { 8, 64, 512, 2048, 8192, 16384, 65536, 262144, 1048576, 4194304, 16777216 }

-- How many times as fast as the better MPI, up to so many bytes.
local TARGETS = { { 65536, 2.5 }, { 262144, 2 }, { 1048576, 1.5 }, { 16777216, 1 } }

local MPIS = {
    { name = "OpenMPI", cc = "mpicc.openmpi",
        run = "mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none -n 2" },
    { name = "MPICH", cc = "mpicc.mpich", run = "mpirun.mpich -n 2" },
}

local function sh(command)
    return os.execute(command) == true
end

local failed = false

-- Runs a command that prints lines of numbers; returns them as rows, or nil.
local function rows(command)
    local pipe = assert(io.popen(command))
    local out = {}
    for line in pipe:lines() do
        local row = {}
        for word in line:gmatch("%S+") do
            row[#row + 1] = tonumber(word)
        end
        out[#out + 1] = row
    end
    if not pipe:close() then
        print("failed: " .. command)
        failed = true
        return nil
    end
    return out
end

local function median(values)
    table.sort(values)
    return values[(#values + 1) // 2]
end

local function bytes_text(n)
    if n >= 1 << 20 then
        return ("%d MiB"):format(n >> 20)
    end
    return n >= 1024 and ("%d KiB"):format(n >> 10) or ("%d B"):format(n)
end

local function target(bytes)
    for _, row in ipairs(TARGETS) do
        if bytes <= row[1] then
            return row[2]
        end
    end
end

-- A series: name, command(sizes), ns[size] = samples over rounds.
local function series(name, command)
    return { name = name, command = command, ns = {} }
end

local function rankfold(name, dtype, bytes_of)
    return series(name, function()
        local sizes = {}
        for i, n in ipairs(SIZES) do
            sizes[i] = bytes_of(n)
        end
        return ("%srankfold_allreduce %d %s %s"):format(OUT, BUDGET_MS, dtype,
            table.concat(sizes, " "))
    end)
end

-- All series take turns, round by round, so that drift hits all alike.
local function measure(list)
    for _ = 1, ROUNDS do
        for _, s in ipairs(list) do
            for i, row in ipairs(rows(s.command()) or {}) do
                s.ns[i] = s.ns[i] or {}
                table.insert(s.ns[i], row[2])
            end
        end
    end
    for _, s in ipairs(list) do
        for i = 1, #SIZES do
            s[i] = s.ns[i] and median(s.ns[i])
        end
    end
end

local function us(ns)
    return ns and ("%10.2f"):format(ns / 1000) or ("%10s"):format("-")
end

local function mpi_series()
    local list = {}
    for _, mpi in ipairs(MPIS) do
        local program = OUT .. "mpi_" .. mpi.name:lower()
        if not sh("command -v " .. mpi.cc .. " >/dev/null") then
            print(mpi.name .. " is not installed: left out")
        elseif not sh(("%s -O2 -Itests/bench -o %s tests/bench/mpi_allreduce.c"):format(mpi.cc, program)) then
            print(mpi.name .. " does not compile: left out")
        else
            list[#list + 1] = series(mpi.name, function()
                return ("%s %s %d %s"):format(mpi.run, program, BUDGET_MS, table.concat(SIZES, " "))
            end)
        end
    end
    return list
end

-- ---- the tables ----

local function against_mpi()
    local a = rankfold("Rankfold", "f32", function(n) return n end)
    local b = rankfold("again", "f32", function(n) return n end)
    local mpis = mpi_series()
    measure({ a, b, table.unpack(mpis) })
    print(("all-reduce f32, 2 ranks, us (median of %d rounds; noise: the same thing measured twice)")
        :format(ROUNDS))
    local head = ("%8s %10s %7s"):format("", a.name, "noise")
    for _, m in ipairs(mpis) do
        head = head .. (" %10s"):format(m.name)
    end
    print(head .. "    times as fast as the better")
    for i, n in ipairs(SIZES) do
        local noise = a[i] and b[i] and math.abs(a[i] / b[i] - 1) * 100 or 0
        local line = ("%8s %s %6.1f%%"):format(bytes_text(n), us(a[i]), noise)
        local best
        for _, m in ipairs(mpis) do
            line = line .. " " .. us(m[i])
            best = m[i] and math.min(best or m[i], m[i]) or best
        end
        if best and a[i] then
            local ratio, goal = best / a[i], target(n)
            line = line .. ("   %5.2f  (target %.1f%s)"):format(ratio, goal,
                ratio >= goal and "" or ", missed")
        end
        print(line)
    end
end

local function dtypes()
    local f32 = rankfold("f32", "f32", function(n) return n end)
    local bf16 = rankfold("bf16", "bf16", function(n) return n // 2 end)
    local f16 = rankfold("f16", "f16", function(n) return n // 2 end)
    measure({ f32, bf16, f16 })
    print("\nequal element counts, us                    f32 / bf16   f32 / f16 (target 1)")
    print(("%10s %10s %10s %10s"):format("elements", "f32", "bf16", "f16"))
    for i, n in ipairs(SIZES) do
        if f32[i] and bf16[i] and f16[i] then
            print(("%10d %s %s %s %11.2f %11.2f"):format(n // 4, us(f32[i]), us(bf16[i]), us(f16[i]),
                f32[i] / bf16[i], f32[i] / f16[i]))
        end
    end
end

local function call_path()
    local out = rows(OUT .. "call_path")
    if out and out[1] then
        print(("\ncall of a prepared shape before the kernel: %.1f ns (median %.1f; target 100), %d bytes allocated")
            :format(table.unpack(out[1])))
    end
end

local function file_size(path)
    local file = assert(io.open(path, "rb"))
    local size = file:seek("end")
    file:close()
    return size
end

local function sizes()
    local empty = OUT .. "empty"
    local source = assert(io.open(empty .. ".c", "w"))
    source:write("int main(void) { return 0; }\n")
    source:close()
    if not sh(("cc -O2 -o %s %s.c && strip %s"):format(empty, empty, empty)) then
        failed = true
        return
    end
    print("\nstripped, beyond an empty program:")
    for _, row in ipairs({ { "call_path", "runtime (target 150 KB)" },
        { "rankfold_allreduce", "runtime, SQLite store (without SQLite), cpu pack" } }) do
        local stripped = OUT .. row[1] .. ".stripped"
        if sh(("strip -o %s %s%s"):format(stripped, OUT, row[1])) then
            print(("%8.1f KB  %s"):format((file_size(stripped) - file_size(empty)) / 1000, row[2]))
        end
    end
end

local function database()
    if sh("test -x " .. OUT .. "db_bench") then
        print("\ntactic database:")
        io.stdout:flush()
        failed = not sh(OUT .. "db_bench") or failed
    end
end

io.stdout:setvbuf("line")
against_mpi()
dtypes()
call_path()
sizes()
database()
os.exit(not failed)
