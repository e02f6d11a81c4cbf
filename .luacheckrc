std = "lua54"
max_line_length = 120
cache = false
files["gen/sku"] = { read_globals = { "gpu" } } -- of gen/sets.lua
