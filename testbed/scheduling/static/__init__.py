"""The static problem of [PHD]: services that never end are placed once, for the highest minimum yield."""
