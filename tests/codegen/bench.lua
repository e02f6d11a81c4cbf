-- How fast is the generator? Writes a SKU of 5,000 variants into an empty folder, again with
-- nothing to change, and prints processor time and memory. Run from the repository's root.

package.path = "./?.lua;" .. package.path
package.cpath = "generated/bin/?.so;" .. package.cpath

local files = require "gen.files"
local registry = require "gen.registry"
local render = require "gen.render"
local sku = require "gen.sku"

local LIMIT_SECONDS, LIMIT_MIB = 1, 100

local hidden = { 0 }
for i = 1, 25 do
    hidden[#hidden + 1] = 128 * i
end

local SKU = ([[
local function set(isa, hidden, unroll, copy)
    return { op = { "ar" }, world = { 1, 2, 3, 4, 5, 6, 7, 8 }, dtype = { "f32", "bf16", "f16" },
        hidden = hidden, algo = { "os" }, transport = { "cpu" }, wire = { "flag" },
        isa = isa, unroll = unroll, copy = copy }
end
return { about = "bench", sets = {
    set({ "scalar" }, { 0 }, { 1 }, { "ca" }),
    set({ "avx2", "avx512" }, { %s }, { 1, 4 }, { "ca", "nt" }),
} }
]]):format(table.concat(hidden, ", "))

local function peak_mib()
    local kib = assert(files.read("/proc/self/status")):match("VmHWM:%s+(%d+) kB")
    return tonumber(kib) / 1024
end

local function generate(out)
    local before = os.clock()
    local read = files.recorder()
    local parsed = assert(sku.parse(SKU, "bench.lua", "bench", 10000))
    local pack = render.pack(parsed, read)
    local n = assert(registry.write(registry.files(pack, read, out, "bench"), out, "bench"))
    return #pack.variants, n, os.clock() - before
end

local out = (os.getenv("TMPDIR") or "/tmp") .. "/gen-bench"
assert(os.execute("rm -rf '" .. out .. "'"))
local ok = true
for _, what in ipairs { "empty folder", "nothing to change" } do
    local variants, written, seconds = generate(out)
    print(("%-18s %d variants, %3d files written, %.2f s (limit %d), peak %.0f MiB (limit %d)")
        :format(what, variants, written, seconds, LIMIT_SECONDS, peak_mib(), LIMIT_MIB))
    ok = ok and seconds < LIMIT_SECONDS and peak_mib() < LIMIT_MIB
end
assert(os.execute("rm -rf '" .. out .. "'"))
print(ok and "within the limits" or "OVER THE LIMITS")
os.exit(ok)
