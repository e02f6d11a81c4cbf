-- Normalised source and the hashes made of it.

local luaunit = require "luaunit"
local files = require "gen.files"
local render = require "gen.render"
local sku = require "gen.sku"
local source = require "gen.source"
local variant = require "gen.variant"
local helper = require "tests.codegen.helper"

local Source = {}

function Source.test_same_code_written_differently()
    local cases = {
        { "int a;", "int   a ;" },
        { "int a; // why", "int a;" },
        { "int /* x */ a;", "int a;" },
        { "int/**/a;", "int a;" },
        { "/* unterminated", "" },
        { "f(a, b);\n", "f( a,\n   b );" },
        { "x = a+b;", "x = a + b ;" },
        { "x = a - -b;", "x=a- -b;" },
        { "#define A 1\nint a;", "#  define   A\t1 // one\n\n\nint a;\n" },
        { "#define A \\\n  1\n", "#define A 1\n" },
        { "a\r\nb\r\n", "a\nb\n" },
        { 'p = "//" ;', 'p="//";' },
        { "c = '\"' ; // \"", "c='\"';" },
        { "if (a) {\n    b;\n}", "if(a){b;}" },
        { "/* it's */ int a; /* \" */", "int a;" },
    }
    for _, case in ipairs(cases) do
        luaunit.assertEquals(source.normalise(case[1]), source.normalise(case[2]), case[1])
    end
end

function Source.test_different_code_stays_different()
    local cases = {
        { "int a;", "inta;" },
        { "x = a - -b;", "x = a--b;" },
        { "x = a + +b;", "x = a++b;" },
        { "x = a & &b;", "x = a && b;" },
        { 'p = "a b";', 'p = "a  b";' },
        { 'p = "/* */";', 'p = "";' },
        { "c = ' ';", "c = '  ';" },
        { "#define F (x)", "#define F(x)" },
        { "#define A 1\nint a;", "#define A 1 int a;" },
        { 'p = "\\"" "x";', 'p = "\\" x";' },
        { "a = 1;", "a = 2;" },
        { 'L "x"', 'L"x"' },
    }
    for _, case in ipairs(cases) do
        luaunit.assertNotEquals(source.normalise(case[1]), source.normalise(case[2]), case[1])
    end
end

function Source.test_normal_form_is_a_fixed_point()
    for _, name in ipairs { "templates/abi.h", "templates/cpu/all_reduce.h",
        "templates/cpu/element.h", "gen/xxh3.c" } do
        local once = source.normalise(assert(files.read(name)))
        luaunit.assertEquals(source.normalise(once), once, name)
    end
end

function Source.test_any_bytes_normalise()
    math.randomseed(20261129)
    local alphabet = "ab \n\"'/*\\#(.+\r\t"
    for _ = 1, 3000 do
        local bytes = {}
        for i = 1, math.random(40) do
            local c = math.random(#alphabet)
            bytes[i] = alphabet:sub(c, c)
        end
        luaunit.assertIsString(source.normalise(table.concat(bytes)))
    end
end

local function reader(texts)
    return function(name)
        return texts[name], name .. ": no such file"
    end
end

function Source.test_headers_are_inlined_once()
    local inline = source.inliner(reader {
        ["templates/a.h"] = '#include "b.h"\nint a; // a\n',
        ["templates/b.h"] = "#include <stdint.h>\nint b;\n",
    })
    luaunit.assertEquals(inline('#include "abi.h"\n#include "a.h"\n#include "b.h"\nint c;', "x.c"),
        '#include "abi.h"\n#include <stdint.h>\nint b;\nint a;\n#include "b.h"\nint c;\n')
end

function Source.test_missing_header_is_named()
    local inline = source.inliner(reader { ["templates/a.h"] = '#include "b.h"\n' })
    luaunit.assertErrorMsgContains('templates/a.h includes "b.h": templates/b.h: no such file',
        inline, '#include "a.h"\n', "x.c")
end

-- Hashes of a small SKU with some files of the tree changed by edit(text).
local CPU = helper.sku { isa = '{ "scalar", "avx2" }', dtype = '{ "f32", "bf16" }' }
local function hashes(edits, sku_text)
    local function read(name)
        local text, reason = files.read(name)
        local edit = edits and edits[name]
        return text and (edit and edit(text) or text), reason
    end
    local pack = render.pack(assert(sku.parse(sku_text or CPU, "test.lua", "test")), read)
    local out = {}
    for _, entry in ipairs(pack.variants) do
        out[entry.name] = entry.hash
    end
    return out
end

local HEADER = "templates/cpu/all_reduce.h"

function Source.test_hashes_are_distinct_and_stable()
    local before, seen = hashes(), {}
    luaunit.assertEquals(hashes(), before)
    for name, hash in pairs(before) do
        luaunit.assertStrMatches(hash, "%x+")
        luaunit.assertEquals(#hash, 32)
        luaunit.assertNil(seen[hash], name)
        seen[hash] = name
    end
end

function Source.test_hashes_ignore_comments_and_white_space()
    luaunit.assertEquals(hashes { [HEADER] = function(text)
        return "/* new */\n" .. text:gsub("\n", "  // changed\n\n", 1):gsub("\n    ", "\n\t  ")
    end }, hashes())
end

local function assert_all_differ(a, b)
    for name, hash in pairs(a) do
        luaunit.assertNotEquals(hash, b[name], name)
    end
end

function Source.test_hashes_follow_code()
    assert_all_differ(hashes(), hashes { [HEADER] = function(text)
        return text .. "\nstatic int changed;\n"
    end })
    assert_all_differ(hashes(), hashes { ["templates/cpu/kernel.c.tmpl"] = function(text)
        return text:gsub("{\n", "{\n    (void)p;\n")
    end })
end

function Source.test_hashes_follow_the_code_of_their_own_instruction_set_only()
    local after = hashes { ["templates/cpu/avx2.h"] = function(text)
        return text .. "\nstatic int changed;\n"
    end }
    for name, hash in pairs(hashes()) do
        luaunit.assertEquals(hash ~= after[name], name:find("_avx2_") ~= nil, name)
    end
end

-- header -> the names whose hashes follow it, the others' don't.
local function assert_followed(sku_text, patterns)
    local before = hashes(nil, sku_text)
    for header, pattern in pairs(patterns) do
        local after = hashes({ ["templates/cuda/" .. header .. ".cuh"] = function(text)
            return text .. "\nstatic int changed;\n"
        end }, sku_text)
        for name, hash in pairs(before) do
            luaunit.assertEquals(hash ~= after[name], name:find(pattern) ~= nil, header .. " " .. name)
        end
    end
end

function Source.test_hashes_follow_the_code_of_their_own_protocol_only()
    assert_followed(helper.peer_sku { algo = '{ "os", "ts" }', transport = '{ "host" }', wire = '{ "tag", "flag" }' },
        { two_shot = "_ts_host_tag_", ring = "_host_flag_", wire_tag = "_tag_" })
    assert_followed(helper.peer_sku { world = "{ 4 }", algo = '{ "os", "ts", "il", "pt" }' },
        { two_shot = "_[ti][sl]_peer_", islands = "_il_", permuted = "_pt_", one_shot = "_os_", collect = "_nan_" })
end

function Source.test_hashes_follow_the_abi_number_and_not_the_rest_of_abi_h()
    assert_all_differ(hashes(), hashes { ["templates/abi.h"] = function(text)
        return text:gsub("(#define RF_ABI%s+)%d+", "%199")
    end })
    luaunit.assertEquals(hashes(), hashes { ["templates/abi.h"] = function(text)
        return text .. "#define ANOTHER_LIST\n"
    end })
end

function Source.test_hash_is_xxhsum_of_the_hashed_text()
    local v = assert(variant.parse("ar_w2_bf16_h0_os_cpu_flag_avx512_u4_nt"))
    local name = helper.folder() .. "/text"
    helper.write(name, variant.hashed_text(v, 7, "one\n", "two\n"))
    local out = helper.sh("xxhsum -H2 <'" .. name .. "'")
    luaunit.assertEquals(out:match("%x+"), variant.hash(v, 7, "one\n", "two\n"))
end

function Source.test_unknown_names_in_templates_are_errors()
    luaunit.assertErrorMsgContains("unknown name 'wrld'", hashes,
        { ["templates/cpu/kernel.c.tmpl"] = function(text)
            return text:gsub("%$%(world%)", "$(wrld)")
        end })
end

return { Source = Source }
