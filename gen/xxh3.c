/* The Lua module of the generator for XXH3-128 (Debian has no binding): require "xxh3".hash128.
 *
 * hash128(piece, ...) -> 32 hex digits of the pieces' concatenation, as `xxhsum -H2` prints them.
 * Arguments are checked by Lua's own auxiliary library, which raises Lua errors; nothing is kept
 * between calls. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <lauxlib.h>
#include <lua.h>

static int hash128(lua_State *lua)
{
    static const char digits[] = "0123456789abcdef";
    const int n = lua_gettop(lua);
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    (void)XXH3_128bits_reset(&state);
    for (int i = 1; i <= n; i++) {
        size_t bytes;
        const char *piece = luaL_checklstring(lua, i, &bytes);
        (void)XXH3_128bits_update(&state, piece, bytes);
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
    char text[2 * sizeof canonical.digest];
    for (size_t i = 0; i < sizeof canonical.digest; i++) {
        text[2 * i] = digits[canonical.digest[i] >> 4];
        text[2 * i + 1] = digits[canonical.digest[i] & 15];
    }
    lua_pushlstring(lua, text, sizeof text);
    return 1;
}

__attribute__((visibility("default"))) int luaopen_xxh3(lua_State *lua);

int luaopen_xxh3(lua_State *lua)
{
    static const luaL_Reg functions[] = {{"hash128", hash128}, {NULL, NULL}};
    luaL_newlib(lua, functions);
    return 1;
}
