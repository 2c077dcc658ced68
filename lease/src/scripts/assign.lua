-- run, or nothing: after a slot has popped an id into POT, serves those who wait. `SERVED` where that was done the short
-- way, `BACK` where something is idle that none of them can use.
assign(true)
return call('LLEN', IDLE) > 0 and 'BACK' or 'OK'
