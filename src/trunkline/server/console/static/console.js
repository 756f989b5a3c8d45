addEventListener("x",()=>{});
