-- CUDA packs as files: they link without CUDA, and the same input gives the same bytes. What is in their
-- code, test_sass.lua looks at.

local luaunit = require "luaunit"
local files = require "gen.files"
local cuda = require "tests.codegen.cuda"
local helper = require "tests.codegen.helper"

local Cuda = {}

local ARCHIVE = "generated/cuda_ci/librankfold_cuda_ci.a"

function Cuda.setUp()
    cuda.need_tools()
    cuda.pack(cuda.root, "cuda_ci")
end

function Cuda.test_the_pack_links_with_plain_cc_and_holds_its_images()
    local out, code = helper.sh(("cc -std=c11 -Wall -Wextra -Werror -Itemplates -DPACK=rf_pack_cuda_ci "
        .. "-o '%s/images' tests/codegen/images.c '%s/%s' && '%s/images'")
        :format(cuda.root, cuda.root, ARCHIVE, cuda.root))
    luaunit.assertEquals(code, 0, out)
    luaunit.assertStrContains(out, "w2_bf16_peer_sm90 image of ")
    luaunit.assertStrContains(out, "toolchain nvcc ")
    luaunit.assertNil(out:find("WRONG"), out)
end

function Cuda.test_the_same_bytes_in_another_folder()
    local other = helper.tree()
    local out, code = helper.sh(("cd '%s' && umask 077 && lua5.4 gen/main.lua cuda_ci && "
        .. "LC_ALL=C TZ=Asia/Tokyo ninja -j1 -f generated/cuda_ci/build.ninja"):format(other))
    luaunit.assertEquals(code, 0, out)
    luaunit.assertTrue(files.read(cuda.root .. "/" .. ARCHIVE) == files.read(other .. "/" .. ARCHIVE))
end

return { Cuda = Cuda }
