-- After a slot has popped an id into POT: serves those who wait.
assign(true)
return 'OK'
