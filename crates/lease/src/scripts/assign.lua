-- [run]: serves waiting tickets after a slot has popped an id into POT. Returns `SERVED` after the fast path, and
-- `BACK` if GPUs are idle that no waiting ticket can use.
assign(true)
return call('LLEN', IDLE) > 0 and 'BACK' or 'OK'
