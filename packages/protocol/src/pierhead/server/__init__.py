"""What every control-plane service is made of: SQL, blobs, auth, problems, streams, and serving."""
