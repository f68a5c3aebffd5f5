"""What every place where a fault can be set needs: when it strikes, and how it is put there."""
