-- Tests of the generator. Run from the repository's root: lua5.4 tests/codegen/run.lua [luaunit's
-- arguments, for example -p NAME]. Needs ninja, cc, nm, xxhsum, and $TMPDIR (else /tmp).

package.path = "./?.lua;" .. package.path
package.cpath = "generated/bin/?.so;" .. package.cpath

local luaunit = require "luaunit"

for _, name in ipairs { "space", "source", "sku", "output", "build", "cuda", "sass" } do
    for case, tests in pairs(require("tests.codegen.test_" .. name)) do
        _G["Test" .. case] = tests
    end
end

os.exit(luaunit.LuaUnit.run())
