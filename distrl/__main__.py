"""`python -m distrl`: the command line."""

from distrl.launch.main import main

if __name__ == "__main__":
    main()
