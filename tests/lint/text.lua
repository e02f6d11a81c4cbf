-- What no linter says: blanks at line ends, tabs in sources, a missing last newline, and paths of somebody's home.
local RULES = {
    {"blanks at the end of the line", "[ \t]+$"},
    {"a tab", "\t"},
    {"a carriage return", "\r"},
    {"a path of somebody's home", "/home/%w"},
    {"a path of root's home", "/root/%w"},
}

local found = 0
local function complain(file, line, what)
    found = found + 1
    io.stderr:write(("%s:%d: %s\n"):format(file, line, what))
end

for _, file in ipairs(arg) do
    local text = assert(io.open(file, "rb")):read("a")
    local number = 0
    for line in text:gmatch("([^\n]*)\n") do
        number = number + 1
        for _, rule in ipairs(RULES) do
            if line:find(rule[2]) then
                complain(file, number, rule[1])
            end
        end
    end
    if #text > 0 and text:sub(-1) ~= "\n" then
        complain(file, number + 1, "no newline at the end of the file")
    end
    if not utf8.len(text) then
        complain(file, 1, "not UTF-8")
    end
end
os.exit(found == 0)
