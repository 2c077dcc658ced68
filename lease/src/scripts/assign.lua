-- After a slot has popped an id into POT: serves those who wait. `BACK` where something is idle that none of them can use.
assign(true)
return call('LLEN', IDLE) > 0 and 'BACK' or 'OK'
