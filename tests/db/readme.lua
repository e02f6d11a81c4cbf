-- readme.lua FILL: runs every SQL block of db/README.md through the sqlite3 shell, against a database that
-- FILL made. Each query has to answer, in lines that fit a wide terminal.

local fill = assert(arg[1], "usage: readme.lua FILL")
local tmp = os.getenv("TMPDIR") or "/tmp"
local database = tmp .. "/readme.db"
local WIDEST = 180

local function quote(text)
    return "'" .. text:gsub("'", "'\\''") .. "'"
end

local function run(command)
    local pipe = assert(io.popen(command .. " 2>&1", "r"))
    local out = pipe:read("a")
    return pipe:close(), out
end

local function blocks(path)
    local file = assert(io.open(path))
    local text = file:read("a")
    file:close()
    return text:gmatch("```sql\n(.-)```")
end

local failures, queries = 0, 0
local function check(good, query, why)
    if good then return end
    failures = failures + 1
    print("FAILED: " .. why .. "\n" .. query)
end

local function ask(query)
    queries = queries + 1
    local good, out = run("sqlite3 -readonly -box -bail " .. quote(database) .. " " .. quote(query))
    print(out)
    check(good, query, "the shell failed")
    local _, rows = out:gsub("\n│", "")
    check(rows >= 2, query, "no answer") -- a header and at least one row
    local seen = {}
    for line in out:gmatch("[^\n]+") do
        check(not seen[line] or not line:find("^│"), query, "two rows that nothing tells apart: " .. line)
        seen[line] = true
        check(utf8.len(line) and utf8.len(line) <= WIDEST, query, "a line is too wide or no UTF-8")
    end
end

os.remove(database)
local good, out = run(quote(fill) .. " " .. quote(database))
assert(good, out)
for block in blocks("db/README.md") do
    for query in block:gmatch("[^;]+;") do
        print((query:gsub("^%s+", "")))
        ask(query)
    end
end
check(queries >= 12, "", "only " .. queries .. " queries")

-- A query that has no answer fails here, so the test can fail.
local before = failures
local print_all = print
print = function() end -- luacheck: ignore
ask("SELECT * FROM runs WHERE world = 77;")
print = print_all -- luacheck: ignore
assert(failures > before, "a query without an answer went unnoticed")
failures = before

os.remove(database)
print(("%d queries, %d failures"):format(queries - 1, failures))
os.exit(failures == 0)
