-- Writes generated/lint/build.ninja, one edge per linter and file, and generated/compile_commands.json for
-- clang-tidy and editors. `ninja check` runs it, then that build file: only what changed is checked again.
local dir = require "pl.dir"
local path = require "pl.path"
local utils = require "pl.utils"

local OUT = "generated/lint"
local TREES = {"db", "gen", "runtime", "templates", "tests"}

-- Ends like C, but is Promela.
local NOT_C = {
    ["tests/model/gpu.h"] = true,
}

-- "" = scripts without an ending
local TEXTS = {
    [".c"] = true, [".h"] = true, [".lua"] = true, [".py"] = true, [".sql"] = true, [".md"] = true, [".ninja"] = true,
    [""] = true,
}

-- What the compiler needs besides the flags that all files share.
local EXTRA = {
    ["gen/xxh3.c"] = "--extra-arg=$$(pkg-config --cflags lua5.4)",
}

-- Formatted, but not analysed: not compiled by the build, or only where an optional package is installed, or too much.
local NOT_ANALYSED = {
    ["runtime/shared.c"] = "its link edge says which packs",
    ["tests/bench/mpi_allreduce.c"] = "needs an MPI",
    ["tests/gpu/nccl_program.c"] = "needs CUDA's and NCCL's headers",
    ["tests/schedules/kernels.c"] = "the templates for every world, inlined, six times over: minutes each",
}

local TOOLS = {
    {"luacheck", "lua-check"}, {"clang-format", "clang-format"}, {"clang-tidy", "clang-tidy"}, {"cppcheck", "cppcheck"},
    {"pyflakes3", "pyflakes3"},
}

local function need_tools()
    local missing = {}
    for _, tool in ipairs(TOOLS) do
        if not utils.execute("command -v " .. tool[1] .. " >/dev/null") then
            missing[#missing + 1] = ("%s (Debian package %s)"):format(tool[1], tool[2])
        end
    end
    if #missing > 0 then
        io.stderr:write("ninja check: missing: ", table.concat(missing, ", "), ". Install with: sh gen/setup --check\n")
        os.exit(1)
    end
end

local function write_if_changed(file, text)
    if utils.readfile(file) ~= text then
        dir.makepath(path.dirname(file))
        assert(utils.writefile(file, text))
    end
end

local function files_ending(endings)
    local found = {}
    for _, tree in ipairs(TREES) do
        for _, file in ipairs(dir.getallfiles(tree)) do
            if endings[path.extension(file)] and not NOT_C[file] then
                found[#found + 1] = file
            end
        end
    end
    table.sort(found)
    return found
end

-- Only the plain flavour: a file that is listed once per sanitizer would be analysed once per sanitizer.
local function compile_commands()
    local ok, _, all, why = utils.executeex("ninja -t compdb cc")
    assert(ok, why)
    local kept = {}
    for entry in all:gmatch("\n  (%b{})") do
        if entry:find('"output": "generated/host/', 1, true) then
            kept[#kept + 1] = "  " .. entry
        end
    end
    return "[\n" .. table.concat(kept, ",\n") .. "\n]\n"
end

local function escape(file)
    return (file:gsub("[$ :]", "$%0"))
end

local function join(files)
    local escaped = {}
    for i, file in ipairs(files) do
        escaped[i] = escape(file)
    end
    return table.concat(escaped, " ")
end

local RULES = [[
# Written by tests/lint/write.lua.
builddir = generated/lint

rule luacheck
  command = luacheck --quiet --codes --no-color $in >$out.log && touch $out || { cat $out.log; exit 1; }
  description = luacheck
rule format
  command = clang-format --dry-run -Werror $in && touch $out
  description = clang-format $in
rule tidy
  command = clang-tidy --quiet -p generated $extra $in >$out.log 2>&1 && touch $out || { cat $out.log; exit 1; }
  description = clang-tidy $in
rule cppcheck
  command = cppcheck --quiet -j 2 --std=c11 --enable=warning,performance,portability --inline-suppr $
      --error-exitcode=1 --suppressions-list=tests/lint/cppcheck.txt --cppcheck-build-dir=generated/lint/cppcheck $
      -Iruntime/include -Itemplates -Iruntime $in && touch $out
  description = cppcheck
rule pyflakes
  command = pyflakes3 $in && touch $out
  description = pyflakes
rule text
  command = lua5.4 tests/lint/text.lua $in && touch $out
  description = text

]]

local function ninja_file()
    local sources, headers = files_ending {[".c"] = true}, files_ending {[".h"] = true}
    local lua, edges, analysed = files_ending {[".lua"] = true}, {}, {}
    local function edge(rule, name, inputs, implicit, extra)
        local line = "build generated/lint/%s: %s %s | %s"
        edges[#edges + 1] = line:format(escape(name), rule, join(inputs), join(implicit))
        edges[#edges + 1] = extra and "  extra = " .. extra
    end
    edge("luacheck", "luacheck", lua, {".luacheckrc"})
    for _, file in ipairs(files_ending {[".c"] = true, [".h"] = true}) do
        edge("format", file .. ".format", {file}, {".clang-format"})
    end
    for _, file in ipairs(sources) do
        if not NOT_ANALYSED[file] then
            analysed[#analysed + 1] = file
            local implicit = {".clang-tidy", "generated/compile_commands.json", table.unpack(headers)}
            edge("tidy", file .. ".tidy", {file}, implicit, EXTRA[file])
        end
    end
    edge("cppcheck", "cppcheck.ok", analysed, {"tests/lint/cppcheck.txt", table.unpack(headers)})
    local python = files_ending {[".py"] = true}
    python[#python + 1] = "tests/run"
    edge("pyflakes", "pyflakes", python, {})
    local texts = files_ending(TEXTS)
    for _, file in ipairs {".ci/run", "build.ninja", "README.md", "CHANGES.md", "NOTICE"} do
        texts[#texts + 1] = path.exists(file) and file or nil
    end
    edge("text", "text", texts, {"tests/lint/text.lua"})
    return RULES .. table.concat(edges, "\n") .. "\n"
end

need_tools()
dir.makepath(OUT .. "/cppcheck")
write_if_changed("generated/compile_commands.json", compile_commands())
write_if_changed(OUT .. "/build.ninja", ninja_file())
